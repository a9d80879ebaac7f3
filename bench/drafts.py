"""Tokens per second with drafts against without, in one run, on text that repeats itself and on text that does not.

A Llama of `--hidden` x `--layers` whose layers add nothing and whose last matrix leads from each token to one other: it
computes what any model of its size does, and what it will say is known. Texts:

    copies      each output repeats its prompt, in which every 16th token is another
    again      each output was an output before
    new        no run of tokens comes twice
    misleading tokens drawn from 40: runs come again all the time, and go on otherwise
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from corellm import LLM, SamplingParams
from corellm_testing.tiny_text import make_tiny_checkpoint

VOCABULARY = 16384
WARM_UP = 10
"""Turns until steps of all numbers of rows are recorded, and their times are known."""
NGRAM = {"method": "ngram", "num_speculative_tokens": 8, "prompt_lookup_min": 2, "prompt_lookup_max": 4}
SUFFIX = {"method": "suffix", "num_speculative_tokens": 16}
CASES = (
    ("copies", NGRAM),
    ("again", SUFFIX),
    ("new", NGRAM),
    ("new", SUFFIX),
    ("misleading", NGRAM),
    ("misleading", SUFFIX),
)


def make_model(folder: str, hidden: int, layers: int) -> tuple[str, list[int]]:
    """Write the model; return where, and the circle of tokens that it goes through."""
    path = make_tiny_checkpoint(
        folder, architecture="LlamaForCausalLM", vocab_size=VOCABULARY, hidden_size=hidden, num_hidden_layers=layers,
        intermediate_size=3 * hidden, num_attention_heads=hidden // 64, num_key_value_heads=hidden // 128,
        max_position_embeddings=4096, tie_word_embeddings=False,
    )  # fmt: skip
    file = next(Path(path).glob("*.safetensors"))
    weights = load_file(file)
    for name, weight in weights.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weight.zero_()
    circle = Random(0).sample(range(16, VOCABULARY), VOCABULARY - 16)
    embeddings = torch.nn.functional.normalize(torch.randn(VOCABULARY, hidden, generator=torch.manual_seed(0)), dim=1)
    output = torch.zeros_like(embeddings)
    output[circle[1:] + circle[:1]] = embeddings[circle]
    weights |= {
        "model.embed_tokens.weight": embeddings,
        "lm_head.weight": output,
        "model.norm.weight": torch.ones(hidden),
    }
    save_file(weights, file, {"format": "pt"})
    return str(path), circle


def prompts_of(text: str, circle: Sequence[int], streams: int, tokens: int, turn: int) -> list[dict[str, Any]]:
    """Return the prompts of a text; another `turn` has others, except of outputs that come again."""
    prompts = []
    for stream in range(streams):
        start = (stream + streams * (0 if text == "again" else turn)) * (tokens + 1) % (len(circle) - tokens)
        document = list(circle[start : start + tokens + 1])
        document[15::16] = circle[: len(document[15::16])]
        prompts.append({"prompt_token_ids": [*(document if text == "copies" else ()), circle[start]]})
    return prompts


def params_of(text: str, tokens: int, stream: int) -> SamplingParams:
    """Return how a stream is sampled."""
    drawn: dict[str, Any] = {"temperature": 1.0, "seed": stream, "allowed_token_ids": [*range(16, 56)]}
    chosen = drawn if text == "misleading" else {"temperature": 0}
    return SamplingParams(max_tokens=tokens, ignore_eos=True, detokenize=False, **chosen)


def run(llm: LLM, text: str, circle: Sequence[int], streams: int, tokens: int, turn: int) -> tuple[float, Any]:
    """Return the seconds of a batch, and its tokens."""
    prompts = prompts_of(text, circle, streams, tokens, turn)
    params = [params_of(text, tokens, 100 * turn + stream) for stream in range(streams)]
    began = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    return time.perf_counter() - began, [output.outputs[0].token_ids for output in outputs]


def main() -> None:
    """Print a row for each text and number of streams."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8], help="requests at once (default 1 and 8)")
    parser.add_argument("--tokens", type=int, default=128, help="tokens per output (default 128)")
    parser.add_argument("--layers", type=int, default=8, help="of the decoder (default 8)")
    parser.add_argument("--hidden", type=int, default=512, help="its width (default 512)")
    parser.add_argument("--dtype", default="bfloat16", help="of the model (default bfloat16)")
    parser.add_argument("--turns", type=int, default=7, help="measured turns, with and without in each (default 7)")
    args = parser.parse_args()
    print(f"{args.hidden} x {args.layers}, {args.dtype}, {args.tokens} tokens each; median of {args.turns} ratios")
    with tempfile.TemporaryDirectory() as folder:
        path, circle = make_model(folder, args.hidden, args.layers)
        options = {"dtype": args.dtype, "max_num_seqs": 64, "max_model_len": 1024, "generation_config": "none"}
        with LLM(path, **options) as plain:
            for text, config in CASES:
                with LLM(path, speculative_config=config, **options) as drafting:
                    for streams in args.streams:
                        ratios = []
                        for turn in range(args.turns + WARM_UP):
                            without, wanted = run(plain, text, circle, streams, args.tokens, turn)
                            seconds, found = run(drafting, text, circle, streams, args.tokens, turn)
                            assert found == wanted
                            ratios += [without / seconds] if turn >= WARM_UP else []
                        named = f"{text:11}{config['method']:8}{streams:3} streams"
                        print(f"{named} {median(ratios):6.2f}x  ({min(ratios):.2f} to {max(ratios):.2f})", flush=True)


if __name__ == "__main__":
    main()
