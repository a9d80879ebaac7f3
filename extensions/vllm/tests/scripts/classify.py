"""Classes of texts."""

from corellm_vllm import LLM, ClassificationRequestOutput

prompts = ["A red circle", "One two three"]
llm = LLM(model="tiny/classifier", runner="pooling", enforce_eager=True)
for prompt, output in zip(prompts, llm.classify(prompts), strict=True):
    assert isinstance(output, ClassificationRequestOutput)
    probs = output.outputs.probs
    print(f"{prompt!r}: {probs} (size={len(probs)})")
