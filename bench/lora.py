"""Tokens per second with LoRA adapters against none, in one run: one for all requests, and several mixed in each step.

A LLaVA of random weights, and random adapters for every linear layer of its decoder. `off` is the model loaded without
`enable_lora`, `none` with it and no request that has an adapter.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from bench.rates import print_rates
from corellm import LLM, LoRARequest, SamplingParams
from corellm_llava.tiny import make_tiny_checkpoint


def layers_of(checkpoint: Path) -> Iterator[tuple[str, list[int]]]:
    """Yield names and shapes of the weights of a decoder's linear layers."""
    with safe_open(checkpoint / "model.safetensors", "np") as opened:
        for key in opened.keys():  # noqa: SIM118  # it is no mapping
            if "language_model" in key and key.endswith("_proj.weight"):
                yield key.removesuffix(".weight"), opened.get_slice(key).get_shape()


def make_adapter(folder: Path, checkpoint: Path, rank: int, number: int) -> LoRARequest:
    """Write an adapter with random factors for all layers."""
    random, tensors = np.random.default_rng(number), {}
    for module, (outputs, inputs) in layers_of(checkpoint):
        for factor, size in (("A", (rank, inputs)), ("B", (outputs, rank))):
            tensors[f"base_model.model.{module}.lora_{factor}.weight"] = (
                random.standard_normal(size, dtype=np.float32) / 50
            )
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    stated = {"peft_type": "LORA", "r": rank, "lora_alpha": rank}
    (folder / "adapter_config.json").write_text(json.dumps(stated), encoding="utf-8")
    return LoRARequest(folder.name, number + 1, str(folder))


def seconds(llm: LLM, adapters: list[LoRARequest | None], tokens: int) -> float:
    """Return the time of a batch, whose prompts differ and are as long as one another."""
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    prompts = [[20 + number] * 4 for number in range(len(adapters))]
    began = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False, lora_request=adapters)
    spent = time.perf_counter() - began
    assert all(len(output.outputs[0].token_ids) == tokens for output in outputs)
    return spent


def main() -> None:
    """Print a row for each mixture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=32, help="requests at once (default 32)")
    parser.add_argument("--tokens", type=int, default=100, help="tokens per output (default 100)")
    parser.add_argument("--adapters", type=int, default=8, help="mixed in a step (default 8)")
    parser.add_argument("--rank", type=int, default=16, help="of each (default 16)")
    parser.add_argument("--layers", type=int, default=8, help="of the decoder (default 8)")
    parser.add_argument("--hidden", type=int, default=512, help="its width (default 512)")
    parser.add_argument("--rounds", type=int, default=4, help="of all mixtures, of which the first does not count")
    parser.add_argument("--dtype", default="bfloat16", help="of the model (default bfloat16)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = make_tiny_checkpoint(Path(folder) / "model", hidden_size=args.hidden, num_layers=args.layers)
        made: list[LoRARequest | None] = [
            make_adapter(Path(folder) / str(n), path, args.rank, n) for n in range(args.adapters)
        ]
        options = {"dtype": args.dtype, "max_num_seqs": args.batch, "max_model_len": args.tokens + 16}
        lora = {"enable_lora": True, "max_loras": args.adapters, "max_lora_rank": args.rank}
        with LLM(path, **options) as plain, LLM(path, **options, **lora) as llm:
            mixtures: dict[str, tuple[LLM, list[LoRARequest | None]]] = {
                "off": (plain, [None]), "none": (llm, [None]), "one": (llm, made[:1]), f"{len(made)}": (llm, made),
            }  # fmt: skip
            times: dict[str, list[float]] = {name: [] for name in mixtures}
            for _ in range(args.rounds):  # in turns: the machine may be busier at times
                for name, (engine, adapters) in mixtures.items():
                    each = [adapters[number % len(adapters)] for number in range(args.batch)]
                    times[name].append(seconds(engine, each, args.tokens))
    best = {name: min(found[1:]) for name, found in times.items()}
    print(f"{args.batch} requests, {args.tokens} tokens each, adapters of rank {args.rank}, {args.dtype}")
    print_rates(best, args.batch, args.tokens, "none")


if __name__ == "__main__":
    main()
