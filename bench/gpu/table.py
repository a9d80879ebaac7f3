"""The table: each goal beside the figure that was measured, then the figures that explain it, then what failed.

Knows figures only. What was not measured stands there as "-".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.gpu.results import Figures


@dataclass(frozen=True)
class Asked:
    """A figure that is asked for; None where it was not measured."""

    label: str
    value: float | None
    target: float
    unit: str = "%"
    at_most: bool = False

    @property
    def met(self) -> bool:
        """Whether it is as good as asked."""
        return self.value is not None and (self.value < self.target if self.at_most else self.value >= self.target)

    def line(self, *, judged: bool = True) -> str:
        """The row of the table."""
        verdict = "-" if self.value is None or not judged else "yes" if self.met else "NO"
        value, target = ("-" if v is None else f"{100 * v:.1f} %" if self.unit == "%" else f"{v:.2f}{self.unit}"
                         for v in (self.value, self.target))  # fmt: skip
        return f"{self.label:66}{value:>10}   {'<' if self.at_most else '>=':>2} {target:8}{verdict}"


def asked(figures: Figures) -> list[Asked]:
    """Everything that is asked; in a quick run of the tiny model."""
    tiny = any(case.startswith("tiny ") for case in figures)
    large, small = ("tiny", "tiny") if tiny else ("7b", "1b")
    graphs, eager = (figures.get(f"{small} {variant} decode batch 1") for variant in ("graphs", "eager"))
    rows = [
        Asked(f"decode step, {large}, batch {batch}, graphs: of weights + KV over copy rate",
              figures.get(f"{large} graphs decode batch {batch}", {}).get("share"), 0.85)
        for batch in ((1, 2) if tiny else (1, 8))
    ]  # fmt: skip
    rows += [
        Asked("paged decode attention, batch 64, 16k tokens, worst: of its floor",
              _worst(figures, "decode bf16", "batch 64 context 16384", "share"), 0.85),
        Asked("paged prefill, 4k to 16k tokens, worst: of flash SDPA",
              _worst(figures, "prefill", "after 0", "ratio"), 0.80),
    ]  # fmt: skip
    for model in dict.fromkeys((large, small)):
        rows += [
            Asked(f"W1, images in bulk, {model}: over transformers' generate", _over(figures, model, "W1"), 5.0, "x"),
            Asked(f"W2, text in bulk, {model}: over its continuous batching", _over(figures, model, "W2"), 2.0, "x"),
        ]
    over_eager = eager["ms"] / graphs["ms"] if graphs and eager else None
    rows.append(Asked(f"decode step, {small}, batch 1: graphs over eager", over_eager, 3.0, "x"))
    for model, batch in dict.fromkeys(((large, 1), (large, 64), (small, 1))):
        idle = figures.get(f"{model} idle batch {batch}", {}).get("idle")
        rows.append(Asked(f"idle in steady decode, {model}, batch {batch}", idle, 0.05, at_most=True))
    return rows


def _worst(figures: Figures, start: str, end: str, name: str) -> float | None:
    cases = [values[name] for case, values in figures.items() if case.startswith(start) and case.endswith(end)]
    return min(cases, default=None)


def fastest_transformers(figures: Figures, model: str, workload: str) -> dict[str, Any]:
    """The figures of the fastest of transformers' ways."""
    ways = [values for case, values in figures.items() if case.startswith(f"{model} {workload} transformers")]
    return max(ways, key=lambda values: values["tokens_per_s"], default={})


def _over(figures: Figures, model: str, workload: str) -> float | None:
    ours, theirs = figures.get(f"{model} {workload} corellm"), fastest_transformers(figures, model, workload)
    return ours["tokens_per_s"] / theirs["tokens_per_s"] if ours and theirs else None


def equal_tokens(ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]) -> tuple[float, float]:
    """The share of outputs with the same first token, and how many leading tokens are the same on average."""
    same = []
    for a, b in zip(ours, theirs, strict=False):
        differ = [i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y]
        same.append(differ[0] if differ else min(len(a), len(b)))
    return sum(count > 0 for count in same) / len(same), sum(same) / len(same)


def table(figures: Figures, failures: Sequence[dict[str, Any]], *, quick: bool) -> str:
    """The whole text."""
    lines = ["", "=" * 100, ", ".join(f"{name} {value}" for name, value in figures.get("machine", {}).items())]
    if quick:
        lines.append("ON A CPU, WITH TINY SHAPES: THE FIGURES MEAN NOTHING, only that everything runs is seen here")
    lines += ["", f"{'asked':66}{'measured':>10}   {'':>2} {'asked':8}met"]
    lines += [row.line(judged=not quick) for row in asked(figures)]
    lines += ["", "also measured"]
    for case, values in figures.items():
        shown = [f"{name} {value:.4g}" for name, value in values.items() if isinstance(value, (int, float))]
        if case.split()[1:2] in (["W1"], ["W2"]) and case.endswith("corellm"):
            theirs = fastest_transformers(figures, *case.split()[:2])
            if theirs:
                first, leading = equal_tokens(values["leading"], theirs["leading"])
                shown.append(f"first token equal to transformers' in {first:.0%}, {leading:.1f} of 8 in a row")
        if shown:
            lines.append(f"  {case}: {', '.join(shown)}")
    lines += ["", f"failed: {len(failures) or 'nothing'}"]
    lines += [f"  {failure['case']}: {failure['values']['message']:.200}" for failure in failures]
    return "\n".join(lines)
