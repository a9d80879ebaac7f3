"""Prompts with one set of sampling parameters, after their model."""

from corellm_vllm import LLM, SamplingParams

prompts = ["Hello, I am", "The shape in the image is", "One, two, three,"]
sampling_params = SamplingParams(temperature=0.8, top_p=0.95)


def main():
    llm = LLM(model="demo")
    for output in llm.generate(prompts, sampling_params):
        print(f"{output.prompt!r} -> {output.outputs[0].text!r}")


if __name__ == "__main__":
    main()
