"""A function that changes logits."""

from corellm_vllm import LLM, SamplingParams


def ban_first(token_ids, logits):
    logits[0] = float("-inf")
    return logits


llm = LLM(model="demo")
print(llm.generate("Hello", SamplingParams(logits_processors=[ban_first])))
