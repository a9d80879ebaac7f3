"""Two models one after the other, without and with the prefix cache."""

from corellm_vllm import LLM, SamplingParams
from corellm_vllm.distributed import cleanup_dist_env_and_memory

prefix = "You are an expert of shapes. Describe each of them in one short sentence. "
prompts = [prefix + prompt for prompt in ("The circle is", "The square is", "The star is")]
sampling_params = SamplingParams(temperature=0.0, max_tokens=8)


def main():
    regular_llm = LLM(model="demo", gpu_memory_utilization=0.4)
    regular = [output.outputs[0].text for output in regular_llm.generate(prompts, sampling_params)]
    del regular_llm
    cleanup_dist_env_and_memory()
    prefix_cached_llm = LLM(model="demo", enable_prefix_caching=True, gpu_memory_utilization=0.4)
    prefix_cached_llm.generate(prompts[0], sampling_params)
    cached = [output.outputs[0].text for output in prefix_cached_llm.generate(prompts, sampling_params)]
    print("Generated answers are the same:", regular == cached)


if __name__ == "__main__":
    main()
