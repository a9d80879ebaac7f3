"""Embeddings of texts, with the arguments of a command line."""

from argparse import Namespace

from corellm_vllm import LLM, EngineArgs
from corellm_vllm.utils.argparse_utils import FlexibleArgumentParser


def parse_args():
    parser = FlexibleArgumentParser()
    parser = EngineArgs.add_cli_args(parser)
    parser.set_defaults(model="tiny/encoder", runner="pooling", enforce_eager=True)
    return parser.parse_args([])


def main(args: Namespace):
    llm = LLM(**vars(args))
    prompts = ["A red circle", "One two three"]
    for prompt, output in zip(prompts, llm.embed(prompts), strict=True):
        embeds = output.outputs.embedding
        print(f"{prompt!r}: {embeds[:4]} (size={len(embeds)})")


if __name__ == "__main__":
    main(parse_args())
