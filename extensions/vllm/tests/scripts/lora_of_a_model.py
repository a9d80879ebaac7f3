"""The LoRA adapter that comes with a model for audio."""

from corellm_vllm import LLM, SamplingParams
from corellm_vllm.lora.request import LoRARequest

lora_requests = [LoRARequest("speech", 1, "demo")]
print(LLM(model="demo").generate("Hello", SamplingParams(), lora_request=lora_requests))
