"""A mixture of experts in these kernels against transformers' own, in one run: processor time, and what rounding costs.

A Qwen3-MoE of random weights, for each type of weights: processor time per token of decoding with several requests at
once, and of a prompt; and the error of the log-probabilities of a prompt's tokens against float32 (root of the mean
square). Both engines take turns; times are medians over rounds, and the first round does not count.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from bench.precision import KINDS
from corellm import LLM, SamplingParams
from corellm_kernels.cpu import fusing
from corellm_testing.tiny_text import make_tiny_checkpoint

BATCHES = (1, 8, 32)
PROMPT = 256


@contextmanager
def transformers_experts() -> Iterator[None]:
    """Leave experts and routers of models that are loaded meanwhile as transformers has them."""
    with (
        patch.object(fusing, "pack_experts", lambda *args: Counter()),
        patch.object(fusing, "pack_routers", lambda model: 0),
    ):
        yield


def prompts(count: int, length: int, seed: int) -> list[list[int]]:
    """Random ones."""
    made: list[list[int]] = np.random.default_rng(seed).integers(20, 200, (count, length)).tolist()
    return made


def spent(llm: LLM, given: Sequence[Any], tokens: int) -> float:
    """Return seconds of processor time."""
    began = time.process_time()
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    outputs = llm.generate(given, params, use_tqdm=False)
    assert all(len(output.outputs[0].token_ids) == tokens for output in outputs)
    return time.process_time() - began


def times(llm: LLM, tokens: int, seed: int) -> dict[str, float]:
    """Return milliseconds per token by what is done."""
    decoding = {f"{n} at once": 1000 * spent(llm, prompts(n, 4, seed), tokens) / tokens for n in BATCHES}
    return {**decoding, f"a prompt of {PROMPT}": 1000 * spent(llm, prompts(1, PROMPT, seed), 1)}


def logprobs(llm: LLM) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the log-probabilities of the tokens of some prompts."""
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    found = []
    for output in llm.generate(prompts(4, PROMPT, 7), params, use_tqdm=False):
        assert output.prompt_logprobs is not None
        for token, position in zip(output.prompt_token_ids, output.prompt_logprobs, strict=True):
            if position is not None:
                found.append(position[token].logprob)
    return np.array(found)


def main() -> None:
    """Print a row for each type of weights and each of the two."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=32, help="per output (default 32)")
    parser.add_argument("--layers", type=int, default=8, help="of the model (default 8)")
    parser.add_argument("--hidden", type=int, default=512, help="its width (default 512)")
    parser.add_argument("--experts", type=int, default=32, help="of each layer (default 32)")
    parser.add_argument("--chosen", type=int, default=4, help="experts of a token (default 4)")
    parser.add_argument("--inner", type=int, default=256, help="width inside of an expert (default 256)")
    parser.add_argument("--rounds", type=int, default=4, help="of both, of which the first does not count")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS), help="of weights")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = make_tiny_checkpoint(
            Path(folder) / "model", architecture="Qwen3MoeForCausalLM", hidden_size=args.hidden,
            num_hidden_layers=args.layers, num_attention_heads=args.hidden // 64, num_key_value_heads=2, head_dim=64,
            num_experts=args.experts, num_experts_per_tok=args.chosen, moe_intermediate_size=args.inner,
            intermediate_size=args.inner,
        )  # fmt: skip
        options: dict[str, Any] = {"max_num_seqs": max(BATCHES), "max_model_len": 2 * PROMPT, "num_kv_blocks": 600}
        with LLM(str(path), dtype="float32", **options) as llm:
            exact = logprobs(llm)
        for kind in args.kinds:
            with transformers_experts():
                before = LLM(str(path), **options, **KINDS[kind])
            with before, LLM(str(path), **options, **KINDS[kind]) as after:
                engines = {"transformers": before, "kernels": after}
                found: dict[str, list[dict[str, float]]] = {name: [] for name in engines}
                for number in range(args.rounds):  # in turns: the machine may be busier at times
                    for name, llm in engines.items():
                        found[name].append(times(llm, args.tokens, number))
                for name, llm in engines.items():
                    error = float(np.sqrt(np.mean((logprobs(llm) - exact) ** 2)))
                    medians = {what: statistics.median(one[what] for one in found[name][1:]) for what in found[name][0]}
                    row = ", ".join(f"{what} {value:.2f} ms" for what, value in medians.items())
                    print(f"{kind}, {name}: {row}; error {error:.2g}", flush=True)


if __name__ == "__main__":
    main()
