"""The table: what is asked beside what was measured, then the figures that explain it, then what failed.

Knows records only. What was not measured stands there as such; nothing is filled in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench.gpu.asked import Figures, asked, fastest_of_theirs, figures_of
from bench.gpu.records import Record


def table(records: Sequence[Record], models: Sequence[str], *, quick: bool, seconds: float) -> str:
    """Everything, for the terminal."""
    figures = figures_of(records)
    lines = ["", "=" * 100, *_head(figures, seconds)]
    if quick:
        lines.append("ON A CPU, WITH TINY SHAPES: THE FIGURES MEAN NOTHING, only that everything runs is seen here")
    lines += ["", f"{'asked':66}{'measured':>10}   {'':>2} {'asked':8}met"]
    lines += [line.line(figures, judged=not quick) for line in asked(models)]
    lines += ["", "also measured", *_more(figures, models)]
    notes = [record for record in records if record.kind == "note"]
    if notes:
        lines += ["", "not measured, or to know"]
        lines += [f"  {n.case}: {n.values['text']}" for n in notes[:8]]
        lines += [f"  and {len(notes) - 8} more"] if len(notes) > 8 else []
    failures = [record for record in records if record.kind == "failure"]
    lines += ["", f"failed: {len(failures) or 'nothing'}"]
    lines += [f"  {f.part}, {f.case}: {f.values['message']:.200}" for f in failures[:15]]
    lines += [f"  and {len(failures) - 15} more"] if len(failures) > 15 else []
    return "\n".join(lines)


def _head(figures: Figures, seconds: float) -> Iterator[str]:
    machine = figures.get("machine", {})
    packages = ", ".join(f"{name} {machine[name]}" for name in ("torch", "triton", "transformers") if name in machine)
    yield f"{machine.get('device', 'unknown device')}; {packages}; {seconds:.0f} s in all"
    copy, product = figures.get("copy", {}).get("gb_per_s"), figures.get("matmul", {}).get("tflop_per_s")
    if copy and product:
        yield f"ceilings: copy {copy:.0f} GB/s (read and written), bf16 product {product:.1f} TFLOP/s"
    tests = figures.get("kernel tests")
    if tests:
        ended = "" if tests["complete"] == "True" else ", stopped before their end"
        yield f"kernel tests: {tests['passed']} passed, {tests['failed']} failed, {tests['skipped']} skipped{ended}"


def _more(figures: Figures, models: Sequence[str]) -> Iterator[str]:
    for model in models:
        yield from _engine_lines(figures, model)
        yield from _workload_lines(figures, model)
    yield from _kernel_lines(figures)


def _engine_lines(figures: Figures, model: str) -> Iterator[str]:
    for variant in ("graphs", "eager", "unfused"):
        start = f"{model} {variant} decode batch "
        steps = [
            f"{case.removeprefix(start)}: {values['ms']:.2f} ms ({values['share']:.0%})"
            for case, values in figures.items()
            if case.startswith(start)
        ]
        if steps:
            ready = figures.get(f"{model} {variant} start", {}).get("seconds")
            after = f"; ready in {ready:.1f} s" if ready else ""
            yield f"  {model} {variant:8} step by batch  {'  '.join(steps)}{after}"
    if prompts := figures.get(f"{model} prompts with pictures"):
        yield (
            f"  {model} prompts with pictures: {prompts['pictures_per_s']:.0f}/s, {prompts['tflop_per_s']:.0f} "
            f"TFLOP/s ({prompts['share']:.0%} of the product's); processing "
            f"{prompts['processed_per_s_and_thread']:.0f}/s a thread"
        )
    idle = [
        f"{case.rpartition(' ')[2]}: {values['idle']:.1%} ({values['idle_long_gaps']:.1%} in gaps over 10 us, "
        f"{values['kernels_per_step']:.0f} kernels)"
        for case, values in figures.items()
        if case.startswith(f"{model} idle batch")
    ]
    if idle:
        yield f"  {model} idle by batch  {'  '.join(idle)}"
    held = max(
        (v["gib_still_held"] for c, v in figures.items() if c.startswith(model) and c.endswith("closed")), default=0
    )
    if held > 0.5:
        yield f"  {model}: {held:.1f} GiB of GPU memory still held after `close`"


def _workload_lines(figures: Figures, model: str) -> Iterator[str]:
    for workload in ("W1", "W2"):
        ours, theirs = figures.get(f"{model} {workload} ours"), fastest_of_theirs(figures, model, workload)
        if not ours:
            continue
        line = f"  {model} {workload}: {ours['tokens_per_s']:.0f} tokens/s"
        if theirs:
            line += f", transformers {theirs['tokens_per_s']:.0f}"
            first, leading = equal_tokens(ours["leading"], theirs["leading"])
            if alone := theirs.get("generate_alone_tokens_per_s"):
                line += f" ({alone:.0f} without processing: {ours['tokens_per_s'] / alone:.2f}x)"
            line += f"; first token equal in {first:.0%}, {leading:.1f} of 8 in a row"
        yield line
    if shared := figures.get(f"{model} W3 ours"):
        yield (
            f"  {model} W3: {shared['tokens_per_s']:.0f} tokens/s, {shared['ratio']:.2f}x of without sharing, "
            f"{shared['cached']:.0%} of the prompts cached"
        )
    for side in ("ours", "transformers"):
        if alone := figures.get(f"{model} W4 {side}"):
            yield (
                f"  {model} W4 {side}: first token {alone['first_token_ms']:.1f} ms, "
                f"then every {alone['between_tokens_ms']:.2f} ms"
            )


def _kernel_lines(figures: Figures) -> Iterator[str]:
    decodes = [
        (case.split(), values) for case, values in figures.items() if case.startswith("decode ") and "share" in values
    ]
    for kind, heads in dict.fromkeys((words[1], words[2]) for words, _ in decodes):
        for context in dict.fromkeys(words[6] for words, _ in decodes):
            shares = sorted(
                (int(words[4]), values["share"])
                for words, values in decodes
                if (words[1], words[2], words[6]) == (kind, heads, context)
            )
            if shares:
                by_batch = "  ".join(f"{batch}: {share:.0%}" for batch, share in shares)
                yield f"  decode {kind} {heads} of {context}, of the floor by batch  {by_batch}"
    for case, values in figures.items():
        if case.startswith("prefill") and "ratio" in values:
            cudnn = f", {values['cudnn_ratio']:.2f} of cuDNN's" if "cudnn_ratio" in values else ""
            yield f"  {case}: {values['tflop_per_s']:.0f} TFLOP/s, {values['ratio']:.2f} of flash{cudnn}"
    for case, values in figures.items():
        if case.startswith("mixed"):
            beside = f", side by side {values['side_by_side']:.2f}x" if "side_by_side" in values else ""
            yield f"  {case}: {values['ms']:.3f} ms in two launches; in one {values['one_launch']:.2f}x as fast{beside}"
    for case, values in figures.items():
        torch_ms = values.get("twin_ms", values.get("torch_ms"))
        if torch_ms is not None:
            yield (
                f"  {case}: {1e3 * values['ms']:.1f} us, {values['share']:.0%} of the floor; "
                f"torch {1e3 * torch_ms:.1f} us"
            )


def equal_tokens(ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]) -> tuple[float, float]:
    """Share of answers whose first token is the same, and how many leading tokens are, on average."""
    same = []
    for a, b in zip(ours, theirs, strict=False):
        differ = [i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y]
        same.append(differ[0] if differ else min(len(a), len(b)))
    return sum(n > 0 for n in same) / len(same), sum(same) / len(same)
