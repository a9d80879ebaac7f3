"""Rewards of every token."""

from corellm_vllm import LLM

llm = LLM(model="tiny/reward", runner="pooling", dtype="float32")
for output in llm.reward(["Hello", "One two three"]):
    rewards = output.outputs.data
    print(rewards.tolist()[:2], len(rewards))
