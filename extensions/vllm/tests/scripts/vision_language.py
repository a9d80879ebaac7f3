"""One image a prompt, of engine arguments that are changed before the model is loaded."""

from dataclasses import asdict
from typing import NamedTuple

from corellm_vllm import LLM, EngineArgs, SamplingParams
from corellm_vllm.assets.image import ImageAsset
from corellm_vllm.lora.request import LoRARequest
from corellm_vllm.multimodal.image import convert_image_mode


class ModelRequestData(NamedTuple):
    engine_args: EngineArgs
    prompts: list[str]
    stop_token_ids: list[int] | None = None
    lora_requests: list[LoRARequest] | None = None


def run_llava(questions: list[str], modality: str) -> ModelRequestData:
    engine_args = EngineArgs(model="demo", max_model_len=512, limit_mm_per_prompt={modality: 1})
    return ModelRequestData(engine_args, [f"USER: <image>\n{question} ASSISTANT:" for question in questions])


def main():
    data = run_llava(["What shape is it?", "Which colour is it?"], "image")
    default_limits = {"image": 0, "video": 0, "audio": 0}
    data.engine_args.limit_mm_per_prompt = default_limits | dict(data.engine_args.limit_mm_per_prompt or {})
    llm = LLM(**(asdict(data.engine_args) | {"seed": 0, "mm_processor_cache_gb": 0}))
    image = convert_image_mode(ImageAsset("cherry_blossom").pil_image, "RGB")
    sampling_params = SamplingParams(temperature=0.2, max_tokens=8, stop_token_ids=data.stop_token_ids)
    inputs = [{"prompt": prompt, "multi_modal_data": {"image": image}} for prompt in data.prompts]
    for output in llm.generate(inputs, sampling_params=sampling_params, lora_request=data.lora_requests):
        print(output.outputs[0].text)


if __name__ == "__main__":
    main()
