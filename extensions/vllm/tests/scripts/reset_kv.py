"""The prefix cache, emptied under requests in flight."""

from corellm_vllm import EngineArgs, LLMEngine, SamplingParams

engine = LLMEngine.from_engine_args(EngineArgs(model="demo"))
engine.add_request("0", "What shape is it?", SamplingParams(temperature=0.0, max_tokens=16))
step_id = 0
while engine.has_unfinished_requests():
    if step_id == 2:
        engine.reset_prefix_cache(reset_running_requests=True)
    engine.step()
    step_id += 1
