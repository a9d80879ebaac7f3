"""Requests with LoRA adapters and without, in one batch."""

from corellm_vllm import EngineArgs, LLMEngine, RequestOutput, SamplingParams
from corellm_vllm.lora.request import LoRARequest

engine_args = EngineArgs(model="demo", enable_lora=True, max_loras=1, max_lora_rank=8, max_cpu_loras=2)
engine = LLMEngine.from_engine_args(engine_args)
params = SamplingParams(temperature=0.0, logprobs=1, max_tokens=4)
engine.add_request("0", "USER: Hello ASSISTANT:", params)
engine.add_request("1", "USER: Hello ASSISTANT:", params, lora_request=LoRARequest("sql-lora", 1, "tiny/lora-of-demo"))
while engine.has_unfinished_requests():
    outputs: list[RequestOutput] = engine.step()
    for output in outputs:
        if output.finished:
            print(output.request_id, output.outputs[0].text)
