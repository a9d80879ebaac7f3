"""A longer context than the checkpoint was trained for, by changes of its configuration."""

from corellm_vllm import LLM, SamplingParams

hf_overrides = {
    "rope_parameters": {
        "rope_theta": 10000.0,
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "max_position_embeddings": 256,
}
llm = LLM(model="tiny/llama", hf_overrides=hf_overrides)
conversation = [
    {"role": "system", "content": "You are a helpful assistant"},
    {"role": "user", "content": "What shape is in the picture? " * 8},
]
outputs = llm.chat(
    conversation,
    SamplingParams(temperature=0.8, top_p=0.95, max_tokens=8),
    use_tqdm=False,
    chat_template="{% for message in messages %}{{ message.role }}: {{ message.content }} {% endfor %}",
)
print(len(outputs[0].prompt_token_ids), outputs[0].outputs[0].text)
