"""What each type of weights costs in precision, and gains in speed: one checkpoint in float32, bfloat16, int8 and int4.

Precision, also of what `corellm quantize` writes, is measured against transformers in float32: the error of the
log-probabilities of all tokens at all text positions behind an image (root of the mean square), and how often the most
likely token is the same. Speed is tokens per second of decoding, as medians over rounds in which the types take turns,
and as ratios to bfloat16.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
import transformers
from PIL import Image
from torch import Tensor

from corellm import LLM, SamplingParams
from corellm_llava.tiny import make_tiny_checkpoint
from corellm_quantization.writing.checkpoint import write_quantized
from corellm_quantization.writing.choice import Wanted

KINDS: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "float32, int8": {"dtype": "float32", "quantization": "int8"},
    "float32, int8, inputs too": {"dtype": "float32", "quantization": "int8", "activation_dtype": "int8"},
    "bfloat16, int8": {"dtype": "bfloat16", "quantization": "int8"},
    "bfloat16, int8, inputs too": {"dtype": "bfloat16", "quantization": "int8", "activation_dtype": "int8"},
    "float32, int4": {"dtype": "float32", "quantization": "int4"},
    "float32, int4, int8 inputs": {"dtype": "float32", "quantization": "int4", "activation_dtype": "int8"},
    "bfloat16, int4": {"dtype": "bfloat16", "quantization": "int4"},
    "bfloat16, int4, int8 inputs": {"dtype": "bfloat16", "quantization": "int4", "activation_dtype": "int8"},
}
WRITTEN = {
    "8 bits": Wanted(bits=8),
    "4 bits, zeros, some 8": Wanted(zeros=True, eight=["down_proj"]),
    "4 bits, some 8": Wanted(eight=["down_proj"]),
    "4 bits, zeros": Wanted(zeros=True),
    "4 bits": Wanted(),
}
"""Checkpoints that `corellm quantize` writes."""
BATCHES = (1, 8, 32)
ROOT = Path(__file__).resolve().parents[1]
DEMO = ROOT / "plugins/llava/src/corellm_llava/demo"
IMAGES = ROOT / "demo" / "images"


def prompts() -> list[dict[str, Any]]:
    """The demo's questions, each with an answer to go on from, and its image."""
    asked = json.loads((IMAGES / "questions.json").read_text(encoding="utf-8"))
    return [
        {"prompt": f"USER: <image>\n{question} ASSISTANT: It is a {answer}.</s>", "multi_modal_data": {"image": image}}
        for image, question, answer in (
            (Image.open(IMAGES / name).convert("RGB"), question, answer)
            for name, questions in asked.items()
            for question, answer in questions.items()
        )
    ]


def with_transformers(path: Path, dtype: torch.dtype, requests: Sequence[dict[str, Any]]) -> tuple[list[Tensor], int]:
    """Log-probabilities `[positions, vocabulary]` of each prompt, in float32, and how many lie before text only."""
    model = transformers.LlavaForConditionalGeneration.from_pretrained(path, dtype=dtype).eval()
    processor, found, behind = transformers.AutoProcessor.from_pretrained(path), [], 0
    for request in requests:
        image = request["multi_modal_data"]["image"]
        inputs = processor(images=image, text=request["prompt"], return_tensors="pt").to(dtype)
        with torch.inference_mode():
            found.append(model(**inputs).logits[0, :-1].float().log_softmax(-1))
        last = (inputs["input_ids"][0] == model.config.image_token_id).nonzero().max().item()
        behind = max(behind, int(last) + 1)
    return found, behind


def with_corellm(llm: LLM, requests: Sequence[dict[str, Any]]) -> list[Tensor]:
    """The same with corellm."""
    params = SamplingParams(max_tokens=1, prompt_logprobs=-1)
    found = []
    for output in llm.generate(requests, params, use_tqdm=False):
        assert output.prompt_logprobs is not None
        rows = [row for row in output.prompt_logprobs if row is not None]
        found.append(torch.tensor([[row[token].logprob for token in range(len(row))] for row in rows]))
    return found


def compare(found: Sequence[Tensor], wanted: Sequence[Tensor], behind: int) -> tuple[float, float]:
    """Root mean square of the errors behind a position, and the share of equal choices."""
    errors = [(ours - theirs)[behind:] for ours, theirs in zip(found, wanted, strict=True)]
    same = [(a.argmax(-1) == b.argmax(-1))[behind:] for a, b in zip(found, wanted, strict=True)]
    return torch.cat(errors).square().mean().sqrt().item(), torch.cat(same).float().mean().item()


def show_precision(path: Path) -> None:
    """Print the table for one checkpoint."""
    requests = prompts()
    wanted, behind = with_transformers(path, torch.float32, requests)
    vocabulary = wanted[0].shape[-1]
    print(f"\n{path.name}: {sum(len(rows) - behind for rows in wanted)} positions, {vocabulary} tokens")
    print(f"{'':28}{'error of log-probabilities':>28}{'same choice':>14}")

    def show(name: str, found: Sequence[Tensor]) -> None:
        error, same = compare(found, wanted, behind)
        print(f"{name:28}{error:>28.2e}{same:>13.1%}", flush=True)

    show("transformers, bfloat16", with_transformers(path, torch.bfloat16, requests)[0])
    for name, options in KINDS.items():
        with LLM(str(path), max_num_seqs=4, **options) as llm:
            show(f"corellm, {name}", with_corellm(llm, requests))
    with tempfile.TemporaryDirectory() as directory:
        for name, wanted_bits in WRITTEN.items():
            made = Path(directory, name)
            written = write_quantized(str(path), made, wanted_bits)
            with LLM(str(made), dtype="float32", max_num_seqs=4) as llm:
                show(f"written, {name}", with_corellm(llm, requests))
            print(f"{'':28}{written.bytes_after / 1e6:.2f} MB, before {written.bytes_before / 1e6:.2f} MB")


def show_speed(path: Path, rounds: int, tokens: int) -> None:
    """Print tokens per second of each kind at each batch size."""
    seconds: dict[tuple[str, int], list[float]] = {}
    with ExitStack() as loaded:
        engines = {
            name: loaded.enter_context(LLM(str(path), max_model_len=512, max_num_seqs=32, **options))
            for name, options in KINDS.items()
        }
        params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
        for _ in range(rounds + 1):
            for name, llm in engines.items():
                for batch in BATCHES:
                    texts = [f"USER: Number {i} ASSISTANT:" for i in range(batch)]
                    start = time.perf_counter()
                    llm.generate(texts, params, use_tqdm=False)
                    seconds.setdefault((name, batch), []).append(time.perf_counter() - start)
    print(f"\ntokens per second, {tokens} for each sequence; against bfloat16")
    print(f"{'':20}" + "".join(f"{f'{batch} at once':>20}" for batch in BATCHES))
    for name in KINDS:
        cells = []
        for batch in BATCHES:
            rate = batch * tokens / statistics.median(seconds[name, batch][1:])
            ratios = [b / a for a, b in zip(seconds[name, batch], seconds["bfloat16", batch], strict=True)][1:]
            cells.append(f"{rate:>12.0f} {statistics.median(ratios):>6.2f}x")
        print(f"{name:20}" + "".join(cells))


def main() -> None:
    """Print precision, then speed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a LLaVA to measure the speed of (default: one of random weights)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of the speed (default 5)")
    parser.add_argument("--tokens", type=int, default=64, help="tokens per output (default 64)")
    parser.add_argument("--only", choices=("precision", "speed"), help="one of the two")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as directory:
        path = args.model or make_tiny_checkpoint(Path(directory, "random weights"), hidden_size=512, num_layers=8)
        if args.only != "speed":
            show_precision(DEMO)
            show_precision(path)
        if args.only != "precision":
            show_speed(path, args.rounds, args.tokens)


if __name__ == "__main__":
    main()
