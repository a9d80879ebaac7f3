"""The operations of a call, counted by torch."""

from torch.utils.flop_counter import FlopCounterMode

from corellm_vllm import LLM, SamplingParams

llm = LLM(model="demo", enforce_eager=True)
with FlopCounterMode(display=False) as counter:
    llm.generate("Hello", SamplingParams(max_tokens=2))
print(counter.get_total_flops() >= 0)
