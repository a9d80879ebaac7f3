"""Log-probabilities of prompts and outputs."""

from corellm_vllm import LLM, SamplingParams
from corellm_vllm.logprobs import Logprob

llm = LLM(model="demo", max_logprobs=20, logprobs_mode="raw_logprobs")
params = SamplingParams(temperature=0, max_tokens=4, logprobs=2, prompt_logprobs=1)
output = llm.generate("What shape is it?", params)[0]
print(output.prompt_logprobs[0], output.outputs[0].cumulative_logprob)
for position in output.outputs[0].logprobs:
    for token_id, logprob in position.items():
        assert isinstance(logprob, Logprob)
        print(token_id, logprob.rank, logprob.decoded_token, logprob.logprob)
