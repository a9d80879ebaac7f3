"""A trace of what the model runs."""

import os

from corellm_vllm import LLM, SamplingParams

os.environ["VLLM_TORCH_PROFILER_DIR"] = "./profile"

if __name__ == "__main__":
    llm = LLM(model="demo", tensor_parallel_size=1)
    llm.start_profile()
    outputs = llm.generate(["Hello, I am"], SamplingParams(temperature=0.8, top_p=0.95, max_tokens=2))
    llm.stop_profile()
    print(outputs[0].outputs[0].text)
