"""Scores with a chat template for pairs."""

from corellm_vllm import LLM

llm = LLM(model="tiny/reranker", runner="pooling")
template = "{{ messages[0].content }} {{ messages[1].content }}"
print(llm.score("What shape?", ["A red circle"], chat_template=template)[0].outputs.score)
