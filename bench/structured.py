"""Tokens per second with a form on every request against none, in one run: what holding outputs to a form costs.

A LLaVA of random weights, sampled at temperature 1; outputs have `--tokens` tokens each, with a form and without. What
a form costs does not depend on the model's size, so its share does.
"""

from __future__ import annotations

import argparse
import tempfile
import time

from bench.rates import print_rates
from corellm import LLM, SamplingParams, StructuredOutputsParams
from corellm_llava.tiny import make_tiny_checkpoint

ITEM = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "tags": {"type": "array", "items": {"type": "string"}}},
    "required": ["name", "tags"],
    "additionalProperties": False,
}
FORMS = {
    "free": None,
    "schema": StructuredOutputsParams(
        json={"type": "array", "items": ITEM, "minItems": 1000}, disable_any_whitespace=True
    ),
    "regex": StructuredOutputsParams(regex=r"([a-z]+ [0-9]{1,3}, ){1000}"),
}


def seconds(llm: LLM, form: StructuredOutputsParams | None, batch: int, tokens: int) -> float:
    """Return the time of a batch."""
    params = [
        SamplingParams(seed=number, max_tokens=tokens, ignore_eos=form is None, structured_outputs=form)
        for number in range(batch)
    ]
    began = time.perf_counter()
    outputs = llm.generate([f"List {number}:" for number in range(batch)], params, use_tqdm=False)
    spent = time.perf_counter() - began
    assert all(len(output.outputs[0].token_ids) == tokens for output in outputs)
    return spent


def made(folder: str, args: argparse.Namespace) -> str:
    """Write the model, and return where."""
    return str(make_tiny_checkpoint(folder, hidden_size=args.hidden, num_layers=args.layers))


def main() -> None:
    """Print a row for each form."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=32, help="requests at once (default 32)")
    parser.add_argument("--tokens", type=int, default=100, help="tokens per output (default 100)")
    parser.add_argument("--layers", type=int, default=8, help="of the decoder (default 8)")
    parser.add_argument("--hidden", type=int, default=512, help="its width (default 512)")
    args = parser.parse_args()
    times: dict[str, list[float]] = {name: [] for name in FORMS}
    with tempfile.TemporaryDirectory() as folder, LLM(made(folder, args), max_num_seqs=args.batch) as llm:
        for _ in range(4):  # in turns: the machine may be busier at times
            for name, form in FORMS.items():
                times[name].append(seconds(llm, form, args.batch, args.tokens))
    best = {name: min(found[1:]) for name, found in times.items()}
    print(f"{args.batch} requests, {args.tokens} tokens each")
    print_rates(best, args.batch, args.tokens, "free")


if __name__ == "__main__":
    main()
