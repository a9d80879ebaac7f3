"""A video as an array of frames."""

from corellm_vllm import LLM, SamplingParams
from corellm_vllm.assets.video import VideoAsset

video = VideoAsset(name="baby_reading", num_frames=8)
llm = LLM(model="demo-video", limit_mm_per_prompt={"video": 1})
prompt = llm.get_tokenizer().apply_chat_template(
    [{"role": "user", "content": [{"type": "video"}, {"type": "text", "text": "Which way does it move?"}]}],
    tokenize=False,
    add_generation_prompt=True,
)
inputs = {"prompt": prompt, "multi_modal_data": {"video": [(video.np_ndarrays, video.metadata)]}}
print(llm.generate(inputs, SamplingParams(temperature=0, max_tokens=8))[0].outputs[0].text)
