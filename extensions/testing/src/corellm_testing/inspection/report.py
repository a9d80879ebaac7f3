"""The report on one prompt, plain data: tokens, items, tensors, and each stage's time and error.

Knows neither how it is collected (`collect`) nor how it is shown (`terminal`, `page`).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Token:
    """One token of the prompt."""

    id: int
    text: str
    """As the tokenizer decodes it; the vocabulary's own spelling where that is no text."""
    positions: tuple[int, ...]
    """`(position,)`, or `(time, height, width)` for M-RoPE; empty where they are unknown."""
    item: int | None = None
    """The item in whose placeholder it is, an index into `Report.items`."""
    embed: int | None = None
    """Index of the item's embedding that it takes; None for a token that keeps its own."""


@dataclass(frozen=True)
class TensorStats:
    """Statistics of one tensor."""

    name: str
    shape: str
    dtype: str
    nbytes: int
    layout: str
    """How it divides into items: `batched`, `flat along 0`, `shared`; empty for an encoder's output."""
    low: float | None = None
    """Least finite value; None where there is none."""
    high: float | None = None
    mean: float | None = None
    not_finite: int = 0
    """Number of values that are NaN or infinite."""
    values: str = ""
    """All values, if they are few."""

    @property
    def summary(self) -> str:
        """The values in a few words."""
        if self.values:
            return self.values
        bad = f"{self.not_finite} NaN or infinite" if self.not_finite else ""
        if self.low is None or self.high is None or self.mean is None:
            return bad
        return f"{self.low:.3g} to {self.high:.3g}, mean {self.mean:.3g}" + (f", {bad}" if bad else "")


@dataclass(frozen=True)
class Grid:
    """The order of an item's embeddings: row by row, step after step."""

    steps: int
    rows: int
    columns: int
    source: str
    """How the grid was found."""

    def __str__(self) -> str:
        return f"{f'{self.steps} x ' if self.steps > 1 else ''}{self.rows} x {self.columns}"


@dataclass(frozen=True)
class View:
    """An image to show: of an item, or of the model's input."""

    caption: str
    mime_type: str
    content: bytes
    width: int
    height: int
    step: int | None = None
    """The step of the grid drawn over it; None for no grid."""
    over_time: bool = False
    """Whether its horizontal axis is time, so that it may be stretched."""


@dataclass
class Item:
    """One item of the prompt; items are in the order of their placeholders."""

    modality: str
    index: int
    file: str
    identifier: str
    """Its content hash, the key of every cache."""
    offset: int
    length: int
    num_embeds: int
    tensors: list[TensorStats]
    embeddings: TensorStats | None = None
    """The encoder's output."""
    error: str | None = None
    """Why encoding failed."""
    grid: Grid | None = None
    views: list[View] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Modality and index, as in error messages."""
        return f"{self.modality} {self.index}"


@dataclass(frozen=True)
class HookCall:
    """One call of one of the adapter's hooks."""

    hook: str
    seconds: float
    result: str
    error: str | None = None


@dataclass
class Stage:
    """A stage of processing and the hooks called in it; their times are part of its time."""

    name: str
    seconds: float = 0.0
    note: str = ""
    error: str | None = None
    hooks: list[HookCall] = field(default_factory=list)


@dataclass
class Report:
    """The whole report; fields that a failed stage would have set keep their defaults."""

    model: str
    """The name by which it was loaded."""
    architecture: str = ""
    adapter: str = ""
    distribution: str = ""
    version: str = ""
    contract: str = ""
    dtype: str = ""
    prompt: str | None = None
    """The text that was tokenized; None where a family makes token ids of a conversation."""
    tokens: list[Token] = field(default_factory=list)
    """Placeholders expanded, unless that failed."""
    position_offset: int | None = None
    """The token generated at index `i` has position `i + position_offset`."""
    items: list[Item] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)

    @property
    def error(self) -> str | None:
        """The first failed stage's error on one line, or None."""
        return next((printable(f"{stage.name}: {stage.error}") for stage in self.stages if stage.error), None)

    @property
    def about_tokens(self) -> str:
        """A phrase on the tokens: unexpanded, without positions, or the next token's position."""
        if self.prompt is None and self.error and not self.items:
            return "placeholders are not expanded: that failed"
        if self.position_offset is None:
            return "positions are not known"
        return f"the one generated next has position {len(self.tokens) + self.position_offset}"

    def outcome(self, stage: Stage) -> str:
        """Return a stage's note or error; an error that repeats an earlier stage's refers to it."""
        if stage.error is None:
            return printable(stage.note)
        first = next(other for other in self.stages if other.error == stage.error)
        return printable(f"failed: {stage.error}") if first is stage else f"failed in the same way as {first.name}"

    def to_json(self) -> str:
        """Return everything but the images, for other programs."""
        plain: dict[str, Any] = asdict(self)
        for item in plain["items"]:
            del item["views"]
        return json.dumps({**plain, "error": self.error}, indent=1, allow_nan=False)


def printable(text: str) -> str:
    """Return text on one line, unprintable characters escaped as in Python."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def shown(text: str) -> str:
    """Return a token's text with visible spaces."""
    return printable(text).replace(" ", "·")


def shown_time(seconds: float) -> str:
    """Return a time in seconds or milliseconds."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.{1 if seconds < 0.1 else 0}f} ms"
