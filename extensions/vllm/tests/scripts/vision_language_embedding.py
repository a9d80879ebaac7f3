"""Embeddings of a text and of an image."""

from corellm_vllm import LLM
from corellm_vllm.assets.image import ImageAsset

llm = LLM(model="demo", runner="pooling", trust_remote_code=True, limit_mm_per_prompt={"image": 1})
image = ImageAsset("stop_sign").pil_image
prompts = ["a red octagon", {"prompt": "USER: <image>\nWhat is it?", "multi_modal_data": {"image": image}}]
for output in llm.embed(prompts):
    print(output.outputs.embedding[:4])
