"""The sampling parameters that a checkpoint recommends, changed a little."""

from corellm_vllm import LLM

llm = LLM(model="demo", generation_config="auto")
sampling_params = llm.get_default_sampling_params()
sampling_params.temperature = 0.5
sampling_params.max_tokens = 8
for output in llm.generate(["What shape is it?"], sampling_params):
    print(output.outputs[0].text)
