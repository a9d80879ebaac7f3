"""A conversation with a model whose layers keep a state: what a turn computes with prefix caching, and without.

A Qwen3.5 of random weights, its decoder 512 x 8, in turns of a system prompt, an image and questions; both engines are
loaded in one process and asked in turns. The time is that of the first token, the best of some conversations, each of
which begins with a text of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import transformers
from PIL import Image
from sklearn.datasets import load_sample_images

from corellm import LLM, SamplingParams
from corellm.tiny_checkpoints import randomize_weights
from corellm_transformers.tiny import make_tiny_checkpoint

TEXT = {
    "hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 8, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 64, "max_position_embeddings": 4096, "linear_num_value_heads": 32,
    "linear_num_key_heads": 16, "linear_key_head_dim": 32, "linear_value_head_dim": 32,
    "layer_types": [*["linear_attention"] * 3, "full_attention"] * 2,
}  # fmt: skip
SYSTEM = "You look at pictures with care, and answer in one sentence what you are asked, number {}. " * 12
QUESTIONS = ("What is in the picture?", "Which colours does it have?", "What else is there to see?")


def write_checkpoint(path: Path) -> None:
    """A tiny checkpoint's files with a larger decoder in them."""
    make_tiny_checkpoint(path, architecture="Qwen3_5ForConditionalGeneration")
    config = transformers.AutoConfig.from_pretrained(path)
    for name, value in TEXT.items():
        setattr(config.text_config, name, value)
    config.vision_config.out_hidden_size = TEXT["hidden_size"]
    model = transformers.Qwen3_5ForConditionalGeneration(config)
    randomize_weights(model, 0)
    model.save_pretrained(path)


def turns(llm: LLM, number: int) -> Iterator[tuple[float, int, int]]:
    """Yield the seconds of each turn's first token, the tokens of its prompt, and those of them that were computed."""
    image = Image.fromarray(load_sample_images().images[number % 2]).resize((448, 320))
    image.putpixel((0, 0), (number % 256, 0, 255))
    messages: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM.format(*[number] * 12)}]
    for turn, question in enumerate(QUESTIONS):
        content: list[dict[str, Any]] = [{"type": "text", "text": question}]
        messages.append({"role": "user", "content": [{"type": "image", "image": image}] * (turn == 0) + content})
        start = time.perf_counter()
        (first,) = llm.chat(messages, SamplingParams(temperature=0, max_tokens=1), use_tqdm=False)
        seconds, length = time.perf_counter() - start, len(first.prompt_token_ids)
        yield seconds, length, length - (first.num_cached_tokens or 0)
        (answer,) = llm.chat(messages, SamplingParams(temperature=0, max_tokens=24, ignore_eos=True), use_tqdm=False)
        messages.append({"role": "assistant", "content": answer.outputs[0].text or "yes"})


def main() -> None:
    """Print each turn's tokens, and its time with the cache as a share of that without."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conversations", type=int, default=3)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as path, ExitStack() as engines:
        write_checkpoint(Path(path))
        options = {"dtype": args.dtype, "max_model_len": 2048, "max_num_seqs": 8, "num_kv_blocks": 600}
        sides = {
            name: engines.enter_context(LLM(path, enable_prefix_caching=name == "with", **options))
            for name in ("with", "without")
        }
        measured: dict[str, list[list[tuple[float, int, int]]]] = {name: [] for name in sides}
        for number in range(1 + args.conversations):
            for name, llm in sides.items():
                measured[name].append([*turns(llm, number)])
    lengths = {name: [[turn[1] for turn in one] for one in of] for name, of in measured.items()}
    assert lengths["with"] == lengths["without"], f"the answers differ: {lengths}"
    rows = []
    for turn in range(len(QUESTIONS)):
        fastest = min(range(1, 1 + args.conversations), key=lambda number: measured["with"][number][turn])
        best = {name: of[fastest][turn] for name, of in measured.items()}  # the first conversation warms up
        (seconds, length, computed), (seconds_without, _, computed_without) = best["with"], best["without"]
        rows.append(
            {
                "turn": turn + 1, "prompt": length, "computed": computed, "computed without": computed_without,
                "ms": seconds * 1e3, "ms without": seconds_without * 1e3, "ratio": seconds / seconds_without,
            }
        )  # fmt: skip
    if args.json:
        print(json.dumps(rows))
        return
    print(f"{'turn':>4} {'prompt':>7} {'computed':>9} {'without':>8} {'ms':>8} {'without':>8} {'ratio':>6}")
    for row in rows:
        print("{:4} {:7} {:9} {:8} {:8.1f} {:8.1f} {:6.2f}".format(*row.values()))


if __name__ == "__main__":
    main()
