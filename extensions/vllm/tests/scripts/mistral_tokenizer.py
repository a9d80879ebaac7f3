"""A tokenizer of another library."""

from corellm_vllm import LLM

LLM(model="demo", tokenizer_mode="mistral", limit_mm_per_prompt={"image": 4}, mm_processor_cache_gb=0)
