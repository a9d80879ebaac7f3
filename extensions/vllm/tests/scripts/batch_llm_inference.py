"""A data set in batches, each row with what was generated for it."""

from corellm_vllm import LLM, SamplingParams

rows = [{"text": f"How many shapes are there? {number}"} for number in range(12)]
llm = LLM(model="demo", enable_chunked_prefill=True, max_num_batched_tokens=512, max_model_len=256)
sampling_params = SamplingParams(temperature=0.3, max_tokens=8)
for start in range(0, len(rows), 4):
    batch = rows[start : start + 4]
    conversations = [[{"role": "user", "content": row["text"]}] for row in batch]
    for row, output in zip(batch, llm.chat(conversations, sampling_params, use_tqdm=False), strict=True):
        row["answer"] = output.outputs[0].text
print(rows[0], len(rows))
