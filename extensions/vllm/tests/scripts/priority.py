"""Prompts by their priority."""

from corellm_vllm import LLM, SamplingParams

llm = LLM(model="demo", scheduling_policy="priority", max_num_seqs=1)
outputs = llm.generate(["Hello", "What shape is it?"], SamplingParams(max_tokens=4), priority=[1, 0])
print([output.metrics.first_scheduled_time for output in outputs])
