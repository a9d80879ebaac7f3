"""Output tokens of many prompts in a second."""

import time

from corellm_vllm import LLM, SamplingParams

llm = LLM(model="demo", max_num_seqs=16, disable_log_stats=True)
params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, detokenize=False)
start = time.perf_counter()
outputs = llm.generate([{"prompt_token_ids": [number, 5, 6, 7]} for number in range(10, 42)], params, use_tqdm=False)
tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
print(f"{tokens} tokens, {tokens / (time.perf_counter() - start):.0f} a second")
