"""Whether sampled outputs are of their forms, and the same in whatever way the engine comes to them.

python -m extensions.structured.tests.proof.outputs --outputs 1000 --seed 0
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tqdm import tqdm

from corellm import LLM, AsyncLLM
from corellm_llava.tiny import make_tiny_checkpoint
from corellm_testing.together import generate_together
from extensions.server.tests.conftest import MODEL, serving
from extensions.structured.tests.proof.sampling import Sample, problem, samples

BATCH = 32
_OPTIONS: dict[str, Any] = {
    "dtype": "float32", "max_model_len": 400, "block_size": 8, "max_num_seqs": BATCH, "num_kv_blocks": 1600,
}  # fmt: skip
_SCARCE: dict[str, Any] = {"num_kv_blocks": 52, "max_num_batched_tokens": 48}
"""Prompts come in chunks, and sequences are preempted."""
_ONE_IN = {"alone": 8, "over HTTP": 4}
"""Share of the requests that are sent in these ways."""
Told = tuple[Any, ...]


def run(model: Path, seed: int, count: int, *, show: bool = False) -> Counter[str]:
    """Sample outputs and judge them; returns how many there were of each kind.

    Raises:
        AssertionError: one has not its form, or depends on how the engine came to it.
    """
    asked = samples(seed, count)
    with tqdm(unit=" outputs", disable=not show) as bar:
        with LLM(str(model), **_OPTIONS) as llm:
            told = _in_batches(llm, asked, bar)
            counts = _judged(asked, told)
            free = [sample for sample in asked if sample.form is None]
            want = [one for sample, one in zip(asked, told, strict=True) if sample.form is None]
            assert _in_batches(llm, free, bar) == want, "an output of no form has other neighbours, and changed"
            for sample, one in [*zip(asked, told, strict=True)][:: _ONE_IN["alone"]]:
                _assert_same("alone", sample, _generated(llm, [sample])[0], one)
        for mode in ("recompute", "swap"):
            with LLM(str(model), **{**_OPTIONS, **_SCARCE}, preemption_mode=mode) as llm:
                again = _in_batches(llm, asked, bar)
                counts[f"preempted by {mode}"] = llm.engine.scheduler.get_stats().num_preemptions
            for sample, *both in zip(asked, again, told, strict=True):
                _assert_same(f"in chunks, preempted by {mode}", sample, *both)
        _over_http(model, [*zip(asked, told, strict=True)][1 :: _ONE_IN["over HTTP"]], bar)
    return counts


def _in_batches(llm: LLM, asked: Sequence[Sample], bar: Any) -> list[Told]:
    told: list[Told] = []
    for start in range(0, len(asked), BATCH):
        told += _generated(llm, asked[start : start + BATCH])
        bar.update(len(asked[start : start + BATCH]))
    return told


def _generated(llm: LLM, asked: Sequence[Sample]) -> list[Told]:
    prompts, params = [sample.prompt for sample in asked], [sample.params for sample in asked]
    outputs = [one.outputs[0] for one in generate_together(llm, prompts, params)]
    return [(one.token_ids, one.text, one.finish_reason, one.logprobs) for one in outputs]


def _judged(asked: Sequence[Sample], told: Sequence[Told]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for sample, (_, text, reason, _) in zip(asked, told, strict=True):
        if sample.form is None:
            counts["of no form"] += 1
            continue
        wrong = problem(sample.form, text, is_whole=reason == "stop")
        assert wrong is None, f"seed {sample.params.seed}, {sample.form!r:.2000}: {wrong}"
        counts[f"{next(iter(sample.form))}, {'whole' if reason == 'stop' else 'cut'}"] += 1
    return counts


def _assert_same(way: str, sample: Sample, got: Told, want: Told) -> None:
    assert got == want, f"{way}, seed {sample.params.seed}, {sample.form!r:.2000}: {got[1]!r} is not {want[1]!r}"


def _over_http(model: Path, asked: Sequence[tuple[Sample, Told]], bar: Any) -> None:
    """Send those without images to a server, many at once."""
    texts = [(sample, told) for sample, told in asked if isinstance(sample.prompt, str)]
    llm = AsyncLLM(str(model), **_OPTIONS)
    try:
        with serving(llm) as running, running.http() as http, ThreadPoolExecutor(BATCH) as threads:
            responses = threads.map(lambda one: http.post("/v1/completions", json=_body(one[0])), texts)
            for response, (sample, told) in zip(responses, texts, strict=True):
                assert response.status_code == 200, f"{response.text} {sample}"
                (choice,) = response.json()["choices"]
                chances = [place[token].logprob for token, place in zip(told[0], told[3], strict=True)]
                got = (choice["logprobs"]["token_logprobs"], choice["text"], choice["finish_reason"])
                _assert_same("over HTTP", sample, got, (chances, *told[1:3]))
                bar.update()
    finally:
        llm.close()


def _body(sample: Sample) -> dict[str, Any]:
    params = sample.params
    body = {
        "model": MODEL, "prompt": sample.prompt, "seed": params.seed, "max_tokens": params.max_tokens,
        "temperature": params.temperature, "logprobs": 1,
    }  # fmt: skip
    return body if sample.form is None else {**body, "structured_outputs": sample.form}


def main() -> int:
    """Run it and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outputs", type=int, default=1000, help="how many (default 1000)")
    parser.add_argument("--seed", type=int, default=0, help="of the forms and of the outputs (default 0)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        counts = run(make_tiny_checkpoint(folder), args.seed, args.outputs, show=True)
    print("\n".join(f"{kind:24}{count:>6}" for kind, count in sorted(counts.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
