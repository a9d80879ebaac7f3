"""Embeddings cut to a length, by the parameters of a request."""

from corellm_vllm import LLM, EmbeddingRequestOutput, PoolingParams

llm = LLM(model="demo", task="embed", dtype="float32")
outputs = llm.embed(["Follow the white rabbit."], pooling_params=PoolingParams(dimensions=32))
for output in outputs:
    assert isinstance(output, EmbeddingRequestOutput)
    print(len(output.outputs.embedding))
