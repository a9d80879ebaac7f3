"""Requests with LoRA adapters."""

from corellm_vllm import EngineArgs, LLMEngine
from corellm_vllm.lora.request import LoRARequest

engine_args = EngineArgs(model="demo", enable_lora=True, max_loras=1, max_lora_rank=8, max_cpu_loras=2)
engine = LLMEngine.from_engine_args(engine_args)
engine.add_request("0", "Hello", lora_request=LoRARequest("sql-lora", 1, "lora"))
