"""Tokens per second with drafts against without, in one run, on text that repeats itself and on text that does not.

A Llama of `--hidden` x `--layers` whose layers add nothing and whose last matrix leads from each token to one other: it
computes what any model of its size does, and what it will say is known. Texts:

    copies      each output repeats its prompt, in which every 16th token is another
    again      each output was an output before
    new        no run of tokens comes twice
    misleading tokens drawn from 40: runs come again all the time, and go on otherwise
    keys       JSON whose keys are some 25 characters each, and whose values are drawn

The draft model is 128 x 2: `draft` says another token after every 8th, `stranger` after each. Beside its ratio on new
text stands the theoretical one, if rows of drafts cost nothing: tokens of a step, by the measured times of both models.
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

from corellm import LLM, SamplingParams, StructuredOutputsParams
from corellm_testing.tiny_text import make_tiny_checkpoint

VOCABULARY = 16384
WARM_UP = 10
"""Turns until steps of all numbers of rows are recorded, and their times are known."""
NUM_DRAFTS = 4
"""Tokens that the draft model proposes in a step."""
WRONG_EVERY = 8
NGRAM = {"method": "ngram", "num_speculative_tokens": 8, "prompt_lookup_min": 2, "prompt_lookup_max": 4}
SUFFIX = {"method": "suffix", "num_speculative_tokens": 16}
DRAFT_MODEL = {"method": "draft_model", "model": "draft", "num_speculative_tokens": NUM_DRAFTS}
FORMS = {"method": "forms"}
KEYS = (
    "number_of_things_in_sight",
    "colour_of_the_background",
    "distance_to_the_next_wall",
    "name_of_the_largest_thing",
)
RECORD = {
    "type": "object",
    "properties": {key: {"type": "integer", "minimum": 0, "maximum": 99} for key in KEYS},
    "required": [*KEYS],
    "additionalProperties": False,
}
FORM = StructuredOutputsParams(
    json={"type": "array", "items": RECORD, "minItems": 1000}, disable_any_whitespace=True
)  # fmt: skip
STRANGER = {**DRAFT_MODEL, "model": "stranger"}
CASES = (
    ("copies", NGRAM),
    ("again", SUFFIX),
    ("new", NGRAM),
    ("new", SUFFIX),
    ("misleading", NGRAM),
    ("misleading", SUFFIX),
    ("new", DRAFT_MODEL),
    ("new", STRANGER),
    ("misleading", DRAFT_MODEL),
    ("keys", FORMS),
)


def make_model(folder: str, hidden: int, layers: int, wrong_every: int = 0) -> tuple[str, list[int]]:
    """Write a model; return where, and the circle of tokens that it goes through, but after some takes another way."""
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
    following = circle[1:] + circle[:1]
    output[following] = embeddings[circle]
    if wrong_every:
        left = circle[::wrong_every]
        output[[following[i] for i in range(0, len(circle), wrong_every)]] = 0.0
        output[[circle[i - 5] for i in range(0, len(circle), wrong_every)]] += embeddings[left]
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
    held: dict[str, Any] = {"temperature": 1.0, "seed": stream, "structured_outputs": FORM}
    chosen = {"misleading": drawn, "keys": held}.get(text, {"temperature": 0})
    return SamplingParams(max_tokens=tokens, ignore_eos=True, detokenize=False, **chosen)


def run(llm: LLM, text: str, circle: Sequence[int], streams: int, tokens: int, turn: int) -> tuple[float, Any]:
    """Return the seconds of a batch, and its tokens."""
    prompts = prompts_of(text, circle, streams, tokens, turn)
    params = [params_of(text, tokens, 100 * turn + stream) for stream in range(streams)]
    began = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    return time.perf_counter() - began, [output.outputs[0].token_ids for output in outputs]


def measure(
    plain: LLM, drafting: LLM, text: str, circle: Sequence[int], streams: int, tokens: int, turns: int
) -> tuple[list[float], float]:
    """Return how many times as fast drafts are in each turn, and the seconds without."""
    ratios, seconds_without = [], []
    for turn in range(turns + WARM_UP):
        without, wanted = run(plain, text, circle, streams, tokens, turn)
        seconds, found = run(drafting, text, circle, streams, tokens, turn)
        assert found == wanted
        if turn >= WARM_UP:
            ratios.append(without / seconds)
            seconds_without.append(without)
    return ratios, median(seconds_without)


def tokens_per_step(circle_step: int, num_drafts: int) -> float:
    """Return the tokens of a step where each so many-th draft is wrong."""
    tokens = steps = 0
    while steps < 1000:
        right = min(num_drafts, (-tokens) % circle_step)
        tokens, steps = tokens + right + 1, steps + 1
    return tokens / steps


def theoretical(
    draft: str, text: str, circle: Sequence[int], streams: int, args: argparse.Namespace, without: float
) -> float:
    """Return the ratio of a draft model of which every so many-th token is wrong, by the time that it takes alone."""
    with LLM(draft, **options_of(args)) as llm:
        seconds = [run(llm, text, circle, streams, args.tokens, turn)[0] for turn in range(WARM_UP + args.turns)]
    cost = median(seconds[WARM_UP:]) / without
    return max(tokens_per_step(WRONG_EVERY, k) / (1 + k * cost) for k in range(NUM_DRAFTS + 1))


def options_of(args: argparse.Namespace) -> dict[str, Any]:
    """Return how models are loaded."""
    return {"dtype": args.dtype, "max_num_seqs": 64, "max_model_len": 1024, "generation_config": "none"}


def main() -> None:
    """Print a row for each text and number of streams."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8], help="requests at once (default 1 and 8)")
    parser.add_argument("--tokens", type=int, default=128, help="tokens per output (default 128)")
    parser.add_argument("--layers", type=int, default=8, help="of the decoder (default 8)")
    parser.add_argument("--hidden", type=int, default=512, help="its width (default 512)")
    parser.add_argument("--dtype", default="bfloat16", help="of the model (default bfloat16)")
    parser.add_argument("--turns", type=int, default=7, help="measured turns, with and without in each (default 7)")
    parser.add_argument("--methods", nargs="+", help="of these methods only, and on these texts")
    args = parser.parse_args()
    print(f"{args.hidden} x {args.layers}, {args.dtype}, {args.tokens} tokens each; median of {args.turns} ratios")
    with tempfile.TemporaryDirectory() as folder:
        path, circle = make_model(f"{folder}/model", args.hidden, args.layers)
        drafts = {
            name: make_model(f"{folder}/{name}", 128, 2, wrong)[0]
            for name, wrong in (("draft", WRONG_EVERY), ("stranger", 1))
        }
        with LLM(path, **options_of(args)) as plain:
            for text, config in CASES:
                name = config.get("model", config["method"])
                if args.methods and not {name, text} <= {*args.methods}:
                    continue
                given = {**config, "model": drafts[name]} if name in drafts else config
                with LLM(path, speculative_config=given, **options_of(args)) as drafting:
                    for streams in args.streams:
                        ratios, without = measure(plain, drafting, text, circle, streams, args.tokens, args.turns)
                        said = f"{text:11}{name:9}{streams:3} streams {median(ratios):6.2f}x"
                        said += f"  ({min(ratios):.2f} to {max(ratios):.2f})"
                        if name == "draft" and text == "new":
                            ideal = theoretical(drafts[name], text, circle, streams, args, without)
                            said += f"; in theory {ideal:.2f}x"
                        print(said, flush=True)


if __name__ == "__main__":
    main()
