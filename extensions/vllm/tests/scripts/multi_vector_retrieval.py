"""Embeddings of every token, and of the text."""

from corellm_vllm import LLM
from corellm_vllm.pooling_params import PoolingParams

llm = LLM(model="tiny/encoder", runner="pooling")
for output in llm.embed(["A red circle"]):
    print(len(output.outputs.embedding))
for output in llm.encode(["A red circle"], pooling_task="token_embed"):
    print(output.outputs.data.shape)
for output in llm.encode(["A red circle"], PoolingParams(task="token_embed", normalize=False)):
    print(output.outputs.data.shape)
