"""The pages on hooks agree with the code: every hook, its arguments, whether it is required, the order of calls."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
import torch

from corellm import LLM, hookspecs
from corellm.errors import EmbeddingInputError
from corellm.hookspecs import REQUIRED_HOOKS, STATIC_HOOKS
from corellm.plugin.contract import CONTRACT
from corellm_fuyu.tiny import make_tiny_checkpoint
from tests.docs.hook_sections import FOLDER, read_sections

SECTIONS = read_sections()


def test_every_hook_has_a_section_and_nothing_else_has() -> None:
    """The documented hooks are those of the contract; the page has their right number."""
    assert set(SECTIONS) == CONTRACT.hooks
    assert f"There are {len(CONTRACT.hooks)};" in (FOLDER / "index.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", sorted(CONTRACT.hooks))
def test_the_section_of_a_hook(name: str) -> None:
    """It has the arguments in their order, required or not, static or not, real code and common mistakes."""
    section = SECTIONS[name]
    assert section.arguments == list(inspect.signature(getattr(hookspecs, name)).parameters)
    assert section.required == (name in REQUIRED_HOOKS)
    assert section.static == (name in STATIC_HOOKS)
    assert '"quote")' in section.text
    assert section.text.count("**For** ") == section.text.count("**Mistakes.**") == 1


def test_the_order_has_every_hook_once() -> None:
    """The table names each hook once and links to its section."""
    text = (FOLDER / "index.md").read_text(encoding="utf-8")
    linked = re.findall(r"\[`(\w+)`\]\((\w+\.md)#(\w+)\)", text[text.index("| when | hooks |") :])
    assert all(name == anchor for name, _, anchor in linked)
    assert sorted((name, page) for name, page, _ in linked) == sorted((n, s.page) for n, s in SECTIONS.items())


def test_the_drawing_has_every_hook_once() -> None:
    """Required hooks are filled."""
    drawing = (FOLDER.parents[1] / "img" / "lifecycle.svg").read_text(encoding="utf-8")
    drawn = re.findall(r'class="tok( emb)?"[^>]*/>\n<text[^>]*>(\w+_\w+)</text>', drawing)
    assert sorted(name for _, name in drawn) == sorted(CONTRACT.hooks)
    assert {name for filled, name in drawn if filled} == set(REQUIRED_HOOKS)


def test_every_hook_is_in_the_table_of_ideas() -> None:
    """CONTRIBUTING links to the section of every hook."""
    text = (FOLDER.parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    linked = re.findall(r"\[`(\w+)`\]\(docs/plugins/hooks/(\w+\.md)#(\w+)\)", text)
    assert all(name == anchor for name, _, anchor in linked)
    assert {(name, page) for name, page, _ in linked} == {(n, s.page) for n, s in SECTIONS.items()}


def test_the_refusal_of_embeddings_is_the_engines(tmp_path: Path) -> None:
    """The error that the page quotes is what a request with embeddings gets from Fuyu."""
    quoted = re.search(r"the error then is: \*(.+?)\*\.", " ".join(SECTIONS["refuse_embeddings"].text.split()))
    assert quoted is not None
    with LLM(make_tiny_checkpoint(tmp_path)) as llm, pytest.raises(EmbeddingInputError) as refused:
        llm.generate({"prompt": "What?", "multi_modal_data": {"image_embeds": [torch.zeros(4, 64)]}}, use_tqdm=False)
    assert str(refused.value) == quoted[1]
