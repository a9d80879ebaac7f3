"""All of the engine arguments from a command line, the sampling parameters beside them."""

from corellm_vllm import LLM, EngineArgs
from corellm_vllm.utils import FlexibleArgumentParser


def main(args: dict):
    max_tokens, top_k = args.pop("max_tokens"), args.pop("top_k")
    llm = LLM(**args)
    sampling_params = llm.get_default_sampling_params()
    sampling_params.max_tokens = max_tokens
    if top_k is not None:
        sampling_params.top_k = top_k
    for output in llm.generate(["Hello", "What shape is it?"], sampling_params):
        print(output.outputs[0].text)


if __name__ == "__main__":
    parser = FlexibleArgumentParser()
    EngineArgs.add_cli_args(parser)
    parser.set_defaults(model="demo")
    parser.add_argument("--max-tokens", type=int, default=8)
    parser.add_argument("--top-k", type=int)
    main(vars(parser.parse_args(["--tensor-parallel-size", "1", "--enforce-eager", "--top-k", "5"])))
