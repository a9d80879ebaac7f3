"""The best of several beams."""

from corellm_vllm import LLM
from corellm_vllm.sampling_params import BeamSearchParams

llm = LLM(model="demo")
(output,) = llm.beam_search(["Hello"], BeamSearchParams(beam_width=2, max_tokens=4, temperature=0.0), None, False)
best, other = output.sequences
assert best.tokens != other.tokens
assert "Hello" in best.text
assert best.cum_logprob > other.cum_logprob
