"""What the terminal shows: every token, what it takes, and whatever failed; on narrow ones, too, and in plain text."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from corellm_testing.inspection.report import Report
from corellm_testing.inspection.terminal import print_report
from extensions.testing.tests.inspection.conftest import Inspect


def printed(report: Report, width: int = 160) -> str:
    out = io.StringIO()
    print_report(report, Console(file=out, width=width, highlight=False))
    return out.getvalue()


def rows(text: str) -> list[list[str]]:
    """Each line's words."""
    return [line.split() for line in text.splitlines()]


def test_equal_tokens_stand_in_one_row(inspect: Inspect) -> None:
    """With their count, their item, and a range of positions for each axis."""
    report = inspect("qwen2_vl", "What?", "video.mp4", "image.png")
    item = report.items[1]
    tokens = report.tokens[item.offset : item.offset + item.length]
    span = f"{item.offset}-{item.offset + item.length - 1}"
    axes = [f"{min(axis)}-{max(axis)}" for axis in list(zip(*(t.positions for t in tokens), strict=True))[1:]]
    expected = [span, str(tokens[0].id), "<|image_pad|>", "×", str(len(tokens)), "image", "0"]
    assert [*expected, str(tokens[0].positions[0]), *axes] in rows(printed(report))


def test_repeated_rows_keep_their_mask(inspect: Inspect) -> None:
    """Fuyu's rows of patches are printed once with their number and the tokens that keep their own embedding."""
    report = inspect("fuyu", "What?", "image.png")
    lines = rows(printed(report))
    start = next(i for i, line in enumerate(lines) if line[1:3] == ["3", "times:"])
    assert lines[start] == ["0-14", "3", "times:", "0-14"]
    assert lines[start + 1][1:] == ["|SPEAKER|", "×", "4", "image", "0"]
    assert lines[start + 2][1:] == ["|NEWLINE|", "its", "own,", "for", "image", "0"]
    assert lines[start + 3][:3] == ["15", str(report.tokens[15].id), "<s>"]


@pytest.mark.parametrize("family", ["llava", "qwen2_audio"])
def test_tells_everything(inspect: Inspect, family: str) -> None:
    """Adapter, identifier, tensors, grid, stages; the same on 80 columns, where nothing is wider."""
    names = {"llava": ("image.png", "image.png"), "qwen2_audio": ("audio.wav",)}
    report = inspect(family, "What?", *names[family])
    wide, narrow = printed(report), printed(report, 80)
    assert max(map(len, narrow.splitlines())) <= 80
    item = report.items[0]
    assert item.embeddings is not None
    told = [
        report.adapter, f"{report.distribution} {report.version}, contract 1", item.identifier, item.embeddings.shape,
        *(tensor.name for tensor in item.tensors), *(tensor.shape for tensor in item.tensors),
        *(stage.name for stage in report.stages), "from the cache",
        f"the one generated next has position {len(report.tokens)}",
    ]  # fmt: skip
    for text in told:
        assert text in wide
        assert text in narrow


def test_text_is_never_markup(inspect: Inspect) -> None:
    """Brackets stay, and what would move the cursor is spelled out."""
    report = inspect("llava", "[bold]x[/bold] \x1b[2J", raw=True)
    out = printed(report)
    assert "\x1b" not in out
    report.stages[0].note = report.model = "[red]a[/red]"
    assert printed(report).count("[red]a[/red]") == 2
