"""Conversations, one and many, with the arguments of a command line."""

from pathlib import Path

from corellm_vllm import LLM, EngineArgs
from corellm_vllm.utils.argparse_utils import FlexibleArgumentParser


def create_parser():
    parser = FlexibleArgumentParser()
    EngineArgs.add_cli_args(parser)
    parser.set_defaults(model="demo")
    group = parser.add_argument_group("sampling")
    group.add_argument("--max-tokens", type=int)
    group.add_argument("--temperature", type=float)
    group.add_argument("--chat-template-path", type=str)
    return parser


def main(args):
    max_tokens, temperature = args.pop("max_tokens"), args.pop("temperature")
    chat_template_path = args.pop("chat_template_path")
    llm = LLM(**args)
    params = llm.get_default_sampling_params()
    if max_tokens is not None:
        params.max_tokens = max_tokens
    if temperature is not None:
        params.temperature = temperature
    conversation = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hello! What do you want to know?"},
        {"role": "user", "content": "Which shapes are there?"},
    ]
    print(llm.chat(conversation, params, use_tqdm=False)[0].outputs[0].text)
    template = None if chat_template_path is None else Path(chat_template_path).read_text()
    for output in llm.chat([conversation] * 3, params, use_tqdm=True, chat_template=template):
        print(output.outputs[0].text)


if __name__ == "__main__":
    main(vars(create_parser().parse_args(["--max_tokens", "8", "--temperature", "0"])))
