"""An encoder-decoder with an image."""

from corellm_vllm import LLM, SamplingParams
from corellm_vllm.assets.image import ImageAsset

llm = LLM(model="tiny/florence2", max_num_seqs=4)
prompts = [{"prompt": "<CAPTION>", "multi_modal_data": {"image": ImageAsset("stop_sign").pil_image}}]
for output in llm.generate(prompts, SamplingParams(temperature=0, max_tokens=8)):
    print(output.outputs[0].text)
