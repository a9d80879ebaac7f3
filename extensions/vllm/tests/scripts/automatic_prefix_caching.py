"""A long prefix, computed once."""

import time

from corellm_vllm import LLM, SamplingParams

LONG_PROMPT = "Here is a list of shapes. " + "a red circle, a blue square, a green triangle, " * 8


def get_generation_time(llm, sampling_params, prompt):
    start = time.time()
    output = llm.generate(prompt, sampling_params=sampling_params)[0]
    print(f"{time.time() - start:.2f} s, {output.num_cached_tokens} cached tokens")


llm = LLM(model="demo", enable_prefix_caching=True)
sampling_params = SamplingParams(temperature=0, max_tokens=4)
get_generation_time(llm, sampling_params, LONG_PROMPT + "How many circles?")
get_generation_time(llm, sampling_params, LONG_PROMPT + "How many squares?")
