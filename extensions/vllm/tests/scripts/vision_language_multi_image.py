"""Several images in a prompt, and in a message by their URLs."""

from corellm_vllm import LLM, SamplingParams
from corellm_vllm.assets.image import ImageAsset
from corellm_vllm.multimodal.utils import encode_image_url, fetch_image

QUESTION = "What is in each image?"
IMAGE_URLS = [encode_image_url(ImageAsset(name).pil_image) for name in ("stop_sign", "cherry_blossom")]


def run_generate(llm, sampling_params):
    prompt = f"USER: {'<image>' * len(IMAGE_URLS)}\n{QUESTION} ASSISTANT:"
    images = [fetch_image(url) for url in IMAGE_URLS]
    outputs = llm.generate({"prompt": prompt, "multi_modal_data": {"image": images}}, sampling_params)
    print(outputs[0].outputs[0].text)


def run_chat(llm, sampling_params):
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in IMAGE_URLS]
    message = {"role": "user", "content": [{"type": "text", "text": QUESTION}, *parts]}
    outputs = llm.chat([message], sampling_params=sampling_params, chat_template=None)
    print(outputs[0].outputs[0].text)


if __name__ == "__main__":
    llm = LLM(model="demo", limit_mm_per_prompt={"image": len(IMAGE_URLS)}, max_num_seqs=2)
    params = SamplingParams(temperature=0.0, max_tokens=8)
    run_generate(llm, params)
    run_chat(llm, params)
