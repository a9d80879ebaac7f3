"""Scores of a query with documents."""

from corellm_vllm import LLM, ScoringRequestOutput

llm = LLM(model="tiny/reranker", runner="pooling")
outputs = llm.score("What shape?", ["A red circle", "One two three"])
for output in outputs:
    assert isinstance(output, ScoringRequestOutput)
    print(output.outputs.score)
