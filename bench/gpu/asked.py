"""What is asked of the GPU, and where in the figures the answer is. Knows records only; what is missing stays so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bench.gpu.records import Record

Figures = dict[str, dict[str, Any]]
"""By case."""
Found = Callable[[Figures], float | None]


@dataclass(frozen=True)
class Asked:
    """A figure that is asked for."""

    label: str
    found: Found
    target: float
    unit: str = "%"
    """Shares are shown in percent; other units are appended."""
    at_most: bool = False

    def line(self, figures: Figures, *, judged: bool = True) -> str:
        """Of the table."""
        value = self.found(figures)
        sign = "<" if self.at_most else ">="
        verdict = "-"
        if value is not None and judged:
            verdict = "yes" if (value < self.target if self.at_most else value >= self.target) else "NO"
        return f"{self.label:66}{self._shown(value):>10}   {sign:>2} {self._shown(self.target):8}{verdict}"

    def _shown(self, value: float | None) -> str:
        if value is None:
            return "-"
        return f"{100 * value:.1f} %" if self.unit == "%" else f"{value:.2f}{self.unit}"


def figures_of(records: Sequence[Record]) -> Figures:
    """The figures, by case."""
    return {record.case: record.values for record in records if record.kind == "figure"}


def asked(models: Sequence[str]) -> list[Asked]:
    """Everything that is asked; of models that were not measured, nothing is found."""
    large, small = ("7b", "1b") if set(models) & {"7b", "1b"} else (models[0], models[0])
    batches = (1, 8) if large == "7b" else (1, 2)
    lines = [
        Asked(
            f"decode step, {large}, batch {batch}, graphs: of weights + KV over copy rate",
            _value(f"{large} graphs decode batch {batch}", "share"), 0.85,
        )
        for batch in batches
    ]  # fmt: skip
    lines += [
        Asked("paged decode attention, batch 64, 16k tokens, worst: of its floor", _worst(_long_decode, "share"), 0.85),
        Asked("paged prefill, 4k to 16k tokens, worst: of flash SDPA", _worst(_asked_prefill, "ratio"), 0.80),
    ]
    for model in dict.fromkeys((large, small)):
        lines += [
            Asked(f"W1, pictures in bulk, {model}: over transformers' generate", _over(model, "W1"), 5.0, "x"),
            Asked(f"W2, text in bulk, {model}: over its continuous batching", _over(model, "W2"), 2.0, "x"),
        ]
    lines.append(Asked(f"decode step, {small}, batch 1: graphs over eager", _graphs_over_eager(small), 3.0, "x"))
    lines += [
        Asked(
            f"idle in steady decode, {model}, batch {batch}",
            _value(f"{model} idle batch {batch}", "idle"), 0.05, at_most=True,
        )
        for model, batch in dict.fromkeys(((large, 1), (large, 64), (small, 1)))
    ]  # fmt: skip
    return lines


# --- finding ----------------------------------------------------------------------------------------------------------


def _value(case: str, name: str) -> Found:
    return lambda figures: figures.get(case, {}).get(name)


def _worst(belongs: Callable[[str], bool], name: str) -> Found:
    """The least of all cases that belong; None where there are none."""
    return lambda figures: min(
        (values[name] for case, values in figures.items() if belongs(case) and name in values), default=None
    )


def _long_decode(case: str) -> bool:
    return case.startswith("decode bf16") and case.endswith("batch 64 context 16384")


def _asked_prefill(case: str) -> bool:
    return case.startswith("prefill") and case.split()[-1] in ("4096", "8192", "16384") and "after" not in case


def fastest_of_theirs(figures: Figures, model: str, workload: str) -> dict[str, Any]:
    """The fastest of transformers' ways."""
    ways = [values for case, values in figures.items() if case.startswith(f"{model} {workload} transformers")]
    return max(ways, key=lambda values: values["tokens_per_s"], default={})


def _over(model: str, workload: str) -> Found:
    def found(figures: Figures) -> float | None:
        ours, theirs = figures.get(f"{model} {workload} ours"), fastest_of_theirs(figures, model, workload)
        return ours["tokens_per_s"] / theirs["tokens_per_s"] if ours and theirs else None

    return found


def _graphs_over_eager(model: str) -> Found:
    def found(figures: Figures) -> float | None:
        graphs, eager = (figures.get(f"{model} {variant} decode batch 1") for variant in ("graphs", "eager"))
        return eager["ms"] / graphs["ms"] if graphs and eager else None

    return found


def summary(records: Sequence[Record], models: Sequence[str]) -> list[dict[str, Any]]:
    """What is asked, for the JSON."""
    figures = figures_of(records)
    return [
        {"asked": line.label, "measured": line.found(figures), "target": line.target, "at_most": line.at_most}
        for line in asked(models)
    ]
