"""Several copies of a model."""

from corellm_vllm import LLM

LLM(model="demo", data_parallel_size=2, enable_expert_parallel=False)
