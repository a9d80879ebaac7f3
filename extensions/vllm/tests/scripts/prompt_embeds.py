"""Prompts as embeddings."""

import torch

from corellm_vllm import LLM

llm = LLM(model="demo")
print(llm.generate({"prompt_embeds": torch.zeros(4, 128)})[0].outputs[0].text)
