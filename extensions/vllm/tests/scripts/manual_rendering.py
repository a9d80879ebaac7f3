"""Token ids, made of a conversation by the script itself."""

from corellm_vllm import LLM, SamplingParams
from corellm_vllm.inputs import TextPrompt, TokensPrompt

llm = LLM(model="demo")
tokenizer = llm.get_tokenizer()
ids = tokenizer.encode("USER: What shape is it? ASSISTANT:", add_special_tokens=False)
params = SamplingParams(temperature=0, max_tokens=4)
for output in llm.generate([TokensPrompt(prompt_token_ids=ids), TextPrompt(prompt="Hello")], params):
    print(output.outputs[0].text)
