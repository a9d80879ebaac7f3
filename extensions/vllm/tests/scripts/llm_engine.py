"""An engine that is stepped by hand, of a command line."""

import argparse

from corellm_vllm import EngineArgs, LLMEngine, RequestOutput, SamplingParams
from corellm_vllm.utils.argparse_utils import FlexibleArgumentParser


def create_test_prompts() -> list[tuple[str, SamplingParams]]:
    return [
        ("What shape is it?", SamplingParams(temperature=0.0, logprobs=1, prompt_logprobs=1)),
        ("Hello", SamplingParams(temperature=0.8, top_k=5, presence_penalty=0.2)),
        ("One two", SamplingParams(n=2, temperature=0.8, top_p=0.95, frequency_penalty=0.1)),
    ]


def process_requests(engine: LLMEngine, test_prompts: list[tuple[str, SamplingParams]]):
    request_id = 0
    while test_prompts or engine.has_unfinished_requests():
        if test_prompts:
            prompt, sampling_params = test_prompts.pop(0)
            engine.add_request(str(request_id), prompt, sampling_params)
            request_id += 1
        request_outputs: list[RequestOutput] = engine.step()
        for request_output in request_outputs:
            if request_output.finished:
                print(request_output.request_id, [output.text for output in request_output.outputs])


def main(args: argparse.Namespace):
    process_requests(LLMEngine.from_engine_args(EngineArgs.from_cli_args(args)), create_test_prompts())


if __name__ == "__main__":
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser(description="the engine alone"))
    main(parser.parse_args(["--model", "demo"]))
