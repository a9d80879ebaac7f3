"""The model itself: what it is made of, and weights that are changed in place."""

from corellm_vllm import LLM, SamplingParams


def count(model):
    return sum(parameter.numel() for parameter in model.parameters())


llm = LLM(model="demo")
print(llm.apply_model(count))
llm.apply_model(lambda model: [parameter.data.mul_(1.0) for parameter in model.parameters()] and None)
llm.reset_prefix_cache()
print(llm.generate("Hello", SamplingParams(max_tokens=2))[0].outputs[0].token_ids)
