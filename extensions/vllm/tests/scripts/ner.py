"""Classes of every token."""

from corellm_vllm import LLM

llm = LLM(model="tiny/token-classifier", runner="pooling", enforce_eager=True)
outputs = llm.encode(["A red circle is above a blue square"], pooling_task="token_classify")
for output in outputs:
    labels = output.outputs.data.argmax(-1)
    for token_id, label in zip(output.prompt_token_ids, labels, strict=True):
        print(token_id, int(label))
