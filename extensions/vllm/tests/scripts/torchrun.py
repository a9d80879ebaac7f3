"""A model divided over processes that another program starts."""

from corellm_vllm import LLM

LLM(model="demo", tensor_parallel_size=2, distributed_executor_backend="external_launcher", seed=0)
