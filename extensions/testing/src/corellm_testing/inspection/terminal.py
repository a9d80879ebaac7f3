"""Prints a report on the terminal: a table row for each run of equal tokens, tables for items and stages.

Nothing is said by colour alone. Text of the prompt is never read as markup.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from corellm_testing.inspection.report import Item, Report, Token, printable, shown, shown_time

_COLOURS = ("cyan", "magenta", "yellow", "green", "bright_blue", "red")
_RESULT = 100
"""Most characters of a hook's result."""

Run = Sequence[Token]
"""Tokens of one id that follow each other and are alike in what they take."""


def print_report(report: Report, console: Console | None = None) -> None:
    """Print a report."""
    console = console or Console(highlight=False)
    for part in _parts(report):
        console.print(part)


def _parts(report: Report) -> Iterator[Text | Table | Padding]:
    yield Text.assemble(
        (report.model, "bold"), f"\n{report.architecture}, {report.dtype}\n",
        f"{report.adapter} of {report.distribution} {report.version}, contract {report.contract}",
    )  # fmt: skip
    if report.tokens:
        yield _title(f"{len(report.tokens)} tokens", report.about_tokens)
        yield _token_table(report)
    for number, item in enumerate(report.items):
        yield _title(item.name, printable(item.file), _colour(number))
        yield Padding(_facts(item), (0, 0, 0, 2))
        yield Padding(_tensor_table(item), (0, 0, 0, 2))
    yield _title("stages")
    yield _stage_table(report)


def _colour(number: int | None) -> str:
    return "" if number is None else _COLOURS[number % len(_COLOURS)]


def _title(text: str, about: str = "", colour: str = "") -> Text:
    return Text.assemble("\n", (text, f"bold {colour}"), "  ", (about, "dim"))


def _table(*columns: str, right: Sequence[str] = ()) -> Table:
    """Return an empty table whose last column alone shrinks on a narrow terminal."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for column in columns:
        side = "right" if column in right else "left"
        table.add_column(column, justify=side, overflow="fold", no_wrap=column != columns[-1])  # type: ignore[arg-type]
    return table


# --- tokens -----------------------------------------------------------------------------------------------------------


def _token_table(report: Report) -> Table:
    axes = max(len(token.positions) for token in report.tokens)
    names = ["time", "height", "width"] if axes == 3 else ["position"] * axes
    table = _table("#", "id", "token", "takes", *names, right=("#", "id"))
    runs = [list(run) for _, run in groupby(report.tokens, key=_kind)]
    index = 0
    for block, times in _repeated(runs):
        size = times * sum(map(len, block))
        if times > 1:
            places = _positions(report.tokens[index : index + size])
            table.add_row(_span(index, size), "", Text(f"{times} times:", "dim"), "", *places)
        for run in block:
            number, takes = _what_it_takes(report, run[0])
            token = Text("  " if times > 1 else "")
            token.append(shown(run[0].text), f"{_colour(number)} {'reverse' * (run[0].embed is not None)}")
            token.append(f" × {len(run)}" * (len(run) > 1))
            where = [] if times > 1 else _positions(run)
            first = "" if times > 1 else _span(index, len(run))
            table.add_row(first, str(run[0].id), token, Text(takes, _colour(number)), *where)
            index += len(run)
        index += size - sum(map(len, block))
    return table


def _what_it_takes(report: Report, token: Token) -> tuple[int | None, str]:
    """Return the index of the token's item, and the text of the column "takes"."""
    if token.item is None:
        return None, ""
    name = report.items[token.item].name
    return token.item, f"its own, for {name}" if token.embed is None else name


def _kind(token: Token) -> tuple[int, int | None, bool]:
    return token.id, token.item, token.embed is not None


def _span(first: int, count: int) -> str:
    return str(first) if count == 1 else f"{first}-{first + count - 1}"


def _positions(tokens: Run) -> list[str]:
    """Return one range for each axis: `5`, `5-40`."""
    axes = zip(*(token.positions for token in tokens), strict=True)
    return [_span(min(axis), max(axis) - min(axis) + 1) for axis in axes]


def _repeated(runs: Sequence[Run]) -> Iterator[tuple[Sequence[Run], int]]:
    """Yield `(runs, times)`: runs one by one, and once a pair of them that repeats three times or more."""
    kinds = [(_kind(run[0]), len(run)) for run in runs]
    index = 0
    while index < len(runs):
        pair, times = kinds[index : index + 2], 1
        while len(pair) == 2 and kinds[index + 2 * times : index + 2 * times + 2] == pair:
            times += 1
        yield (runs[index : index + 2], times) if times > 2 else (runs[index : index + 1], 1)
        index += 2 * times if times > 2 else 1


# --- items and stages -------------------------------------------------------------------------------------------------


def _facts(item: Item) -> Text:
    last = item.offset + item.length - 1
    lines = [f"tokens {item.offset} to {last}: {item.length}, of which {item.num_embeds} take embeddings"]
    if item.embeddings is not None:
        lines.append(f"the encoder returned {item.embeddings.shape}")
    lines.append(f"grid {item.grid}, {item.grid.source}" if item.grid else "no grid: rows and columns are unknown")
    facts = Text("\n".join([*lines, item.identifier]))
    return facts if item.error is None else facts.append(f"\n{printable(item.error)}", "bold red")


def _tensor_table(item: Item) -> Table:
    table = _table("tensor", "shape", "dtype", "bytes", "layout", "values", right=("bytes",))
    for tensor in [*item.tensors, *([item.embeddings] if item.embeddings else [])]:
        layout = tensor.layout or "encoder"
        table.add_row(tensor.name, Text(tensor.shape), tensor.dtype, f"{tensor.nbytes:,}", layout, Text(tensor.summary))
    return table


def _stage_table(report: Report) -> Table:
    """Return the table of stages with their hooks; a load that succeeded is shown without its dozens of hooks."""
    table = _table("stage", "time", "", right=("time",))
    for stage in report.stages:
        outcome = Text(report.outcome(stage), "bold red" if stage.error else "")
        table.add_row(Text(stage.name, "bold"), shown_time(stage.seconds), outcome)
        for call in stage.hooks if stage.error or stage.name != "load" else ():
            result = Text(_short(f"raised {call.error}"), "red") if call.error else Text(_short(call.result), "dim")
            table.add_row(Text(f"  {call.hook}", "dim"), Text(shown_time(call.seconds), "dim"), result)
    return table


def _short(text: str) -> str:
    line = printable(text)
    return line if len(line) <= _RESULT else line[: _RESULT - 1] + "…"
