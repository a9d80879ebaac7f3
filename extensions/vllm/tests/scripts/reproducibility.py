"""The same seed, the same outputs, in another batch, too."""

import random

from corellm_vllm import LLM, SamplingParams

llm = LLM(model="demo", seed=42)
sampling_params = SamplingParams(temperature=0.9, seed=7, max_tokens=8)
first = llm.generate(["What shape is it?"], sampling_params)[0].outputs[0].text
again = llm.generate(["Hello", "What shape is it?", "One two"], sampling_params)[1].outputs[0].text
print(first == again, random.randint(0, 100))
