"""A class that changes logits of a batch."""

from corellm_vllm.v1.sample.logits_processor import LogitsProcessor

from corellm_vllm import LLM


class Dummy(LogitsProcessor):
    pass


LLM(model="demo", logits_processors=[Dummy])
