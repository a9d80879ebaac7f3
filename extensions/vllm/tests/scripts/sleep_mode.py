"""A model that leaves the device for a while."""

from corellm_vllm import LLM, SamplingParams

llm = LLM(model="demo", enable_sleep_mode=True)
params = SamplingParams(temperature=0, max_tokens=8)
before = llm.generate("USER: hello ASSISTANT:", params)[0].outputs[0].text
llm.sleep(level=1)
llm.wake_up()
llm.sleep(level=2)
llm.wake_up(tags=["weights"])
llm.wake_up(tags=["kv_cache"])
llm.reset_prefix_cache()
assert llm.generate("USER: hello ASSISTANT:", params)[0].outputs[0].text == before
