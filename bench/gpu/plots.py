"""Pictures of the figures, where matplotlib is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.gpu.asked import Figures


def draw(figures: Figures, models: list[str], out: Path) -> list[str]:
    """Write the plots there are figures for; their names.

    Raises:
        ImportError: matplotlib is not installed.
    """
    import matplotlib

    matplotlib.use("Agg")
    made = [_decode(figures, out), _prefill(figures, out), _engine(figures, models, out)]
    return [name for name in made if name is not None]


def _decode(figures: Figures, out: Path) -> str | None:
    """Share of the floor by context, a line for each batch, a panel for each cache and heads."""
    cases: dict[tuple[str, str], dict[int, list[tuple[int, float]]]] = {}
    for case, values in figures.items():
        words = case.split()
        if words[0] == "decode" and "share" in values:
            lines = cases.setdefault((words[1], words[2]), {})
            lines.setdefault(int(words[4]), []).append((int(words[6]), values["share"]))
    if not cases:
        return None
    figure, panels = _panels(len(cases))
    for panel, ((kind, heads), lines) in zip(panels, sorted(cases.items()), strict=True):
        for batch, points in sorted(lines.items()):
            contexts, shares = zip(*sorted(points), strict=True)
            panel.plot(contexts, shares, marker="o", label=f"batch {batch}")
        panel.axhline(0.85, color="grey", linestyle=":", label="asked at 16k")
        panel.set(title=f"{kind}, {heads} heads", xlabel="context", ylabel="share of the floor", ylim=(0, 1.1))
        _powers_of_two(panel, sorted({context for points in lines.values() for context, _ in points}))
        panel.legend()
    return _save(figure, figures, out, "decode.png")


def _prefill(figures: Figures, out: Path) -> str | None:
    """TFLOP/s of ours and of flash attention."""
    found = [(case.removeprefix("prefill "), v) for case, v in figures.items() if case.startswith("prefill")]
    cases = [(case, values) for case, values in found if "ratio" in values]
    if not cases:
        return None
    figure, (panel,) = _panels(1)
    places = range(len(cases))
    panel.barh([y + 0.2 for y in places], [v["tflop_per_s"] for _, v in cases], height=0.4, label="paged, ours")
    panel.barh([y - 0.2 for y in places], [v["flash_tflop_per_s"] for _, v in cases], height=0.4, label="flash SDPA")
    panel.set_yticks(list(places), [case for case, _ in cases])
    panel.set(title="prefill attention", xlabel="TFLOP/s")
    panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2)  # below: bars are everywhere
    return _save(figure, figures, out, "prefill.png")


def _engine(figures: Figures, models: list[str], out: Path) -> str | None:
    """Milliseconds of a decode step by batch, a panel for each model."""
    panels_of = {
        model: [case for case in figures if case.startswith(model) and " decode batch " in case] for model in models
    }
    panels_of = {model: cases for model, cases in panels_of.items() if cases}
    if not panels_of:
        return None
    figure, panels = _panels(len(panels_of))
    for panel, (model, cases) in zip(panels, panels_of.items(), strict=True):
        for variant in dict.fromkeys(case.split()[1] for case in cases):
            points = sorted((int(c.split()[4]), figures[c]["ms"]) for c in cases if c.split()[1] == variant)
            panel.plot(*zip(*points, strict=True), marker="o", label=variant)
        floors = sorted({int(c.split()[4]): figures[c]["floor_ms"] for c in cases}.items())
        panel.plot(*zip(*floors, strict=True), color="grey", linestyle=":", label="weights + KV over copy rate")
        panel.set(title=f"decode step, {model}", xlabel="batch", ylabel="ms", ylim=(0, None))
        _powers_of_two(panel, sorted({int(case.split()[4]) for case in cases}))
        panel.legend()
    return _save(figure, figures, out, "engine.png")


def _powers_of_two(panel: Any, values: list[int]) -> None:
    """Steps of the same size on an axis, named as they are."""
    panel.set_xscale("log", base=2)
    panel.set_xticks(values, [f"{value // 1024}k" if value % 1024 == 0 else str(value) for value in values])


def _panels(count: int) -> tuple[Any, list[Any]]:
    from matplotlib import pyplot

    columns = min(3, count)
    rows = -(-count // columns)
    figure, axes = pyplot.subplots(rows, columns, figsize=(6 * columns, 4 * rows), squeeze=False)
    panels = list(axes.flat)
    for surplus in panels[count:]:
        surplus.set_visible(False)
    return figure, panels[:count]


def _save(figure: Any, figures: Figures, out: Path, name: str) -> str:
    machine = figures.get("machine", {}).get("device", "")
    figure.suptitle(machine, fontsize=9)
    figure.tight_layout()
    figure.savefig(out / name, dpi=110)
    return name
