"""A model that leaves the device for a while."""

from corellm_vllm import LLM

llm = LLM(model="demo")
llm.sleep(level=1)
llm.wake_up()
