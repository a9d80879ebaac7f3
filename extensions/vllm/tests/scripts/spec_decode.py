"""Drafts by n-grams of the prompt."""

from corellm_vllm import LLM, SamplingParams

speculative_config = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 5}
llm = LLM(model="demo", speculative_config=speculative_config, disable_log_stats=False)
print(llm.generate("Hello", SamplingParams(temperature=0))[0].outputs[0].text)
