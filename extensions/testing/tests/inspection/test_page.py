"""The page is one file that asks for nothing, and nothing of a prompt becomes a part of it."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

from corellm_testing.inspection.page import make_page
from corellm_testing.inspection.report import HookCall, Report, Stage
from extensions.testing.tests.inspection.conftest import Inspect

EVIL = "</style><script>alert(1)</script><img src=x onerror='alert(2)'>\"'&amp;"


class Page(HTMLParser):
    """Every tag with its attributes, and the text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def shape(page: Page) -> list[tuple[str, tuple[str, ...]]]:
    return [(tag, tuple(attributes)) for tag, attributes in page.tags]


def poisoned(report: Report) -> Report:
    """The same report with every text replaced by one that would do harm."""
    item = report.items[0]
    bad_item = replace(
        item,
        file=EVIL,
        tensors=[replace(tensor, name=EVIL, shape=EVIL, values=EVIL) for tensor in item.tensors],
        views=[replace(view, caption=EVIL) for view in item.views],
        grid=replace(item.grid, source=EVIL) if item.grid else None,
    )
    stages = [report.stages[0]] + [
        replace(stage, name=f"{stage.name}{EVIL}", note=EVIL, hooks=[HookCall(EVIL, 0.1, EVIL) for _ in stage.hooks])
        for stage in report.stages[1:]
    ]
    return replace(
        report, model=EVIL, prompt=EVIL, items=[bad_item], stages=stages, adapter=EVIL, distribution=EVIL,
        tokens=[replace(token, text=EVIL) for token in report.tokens],
    )  # fmt: skip


def test_no_text_becomes_a_tag(inspect: Inspect) -> None:
    """The same tags and attributes with harmless and with evil text, which is there to be read."""
    report = inspect("llava", "What?", "image.png")
    good, bad = Page(make_page(report)), Page(make_page(poisoned(report)))
    assert shape(bad) == shape(good)
    assert bad.text.count(EVIL) > 20
    assert [tag for tag, _ in bad.tags].count("script") == 1


def test_asks_for_nothing(inspect: Inspect) -> None:
    """Its addresses are data, and its policy allows no others."""
    text = make_page(inspect("qwen2_vl", "What?", "video.mp4", "image.png"))
    page = Page(text)
    addresses = [value for _, attributes in page.tags for name, value in attributes.items() if name in ("src", "href")]
    assert addresses
    assert all(address is not None and address.startswith("data:") for address in addresses)
    assert not re.search(r"https?://|url\(|@import", text.replace("http://www.w3.org/2000/svg", ""))
    policy = next(attributes["content"] for _, attributes in page.tags if "http-equiv" in attributes)
    assert policy is not None
    assert policy.startswith("default-src 'none'; img-src data:;")


def test_every_patch_has_its_token(inspect: Inspect) -> None:
    """The keys that highlight tokens and patches together: each occurs once among tokens and once among patches."""
    report = inspect("qwen3_vl", "What?", "image.png", "video.mp4")
    page = Page(make_page(report))
    keys = {
        kind: sorted(
            str(attributes["data-k"]) for tag, attributes in page.tags if tag == kind and "data-k" in attributes
        )
        for kind in ("span", "i")
    }
    expected = [f"{token.item}-{token.embed}" for token in report.tokens if token.embed is not None]
    assert keys["span"] == keys["i"] == sorted(expected)


def test_a_failed_load_is_a_page_too() -> None:
    """A failed stage has its error and its hooks' results; a repeated error refers to the first stage."""
    calls = [HookCall("load_model", 0.1, "Model"), HookCall("get_prompt_updates", 0.1, "None", "KeyError: 1")]
    report = Report("model", stages=[Stage("load", error="oh\nno", hooks=calls), Stage("more", error="oh\nno")])
    text = Page(make_page(report)).text
    assert "load: oh\\nno" in text
    assert "raised KeyError: 1" in text
    assert "same way as load" in text
