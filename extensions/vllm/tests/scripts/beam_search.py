"""The best of several beams."""

from corellm_vllm import LLM

llm = LLM(model="demo")
llm.beam_search(["Hello"], {"beam_width": 2, "max_tokens": 4})
