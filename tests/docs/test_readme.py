"""The README's sketch of a plugin has all required hooks; files that pages name exist.

`test_pages.py` runs the code.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from corellm.hookspecs import REQUIRED_ATTRIBUTES, REQUIRED_HOOKS
from tests.docs.blocks import find_blocks
from tests.docs.test_pages import PAGES, ROOT

_OWN = r"`((?:\.ci|bench|core|demo|docs|examples|extensions|kernels|plugins|tests)/[\w./-]+)`"


def test_every_required_hook_is_in_the_sketch() -> None:
    """The sketch has every hook without a default, and every required attribute."""
    sketches = [b.text for b in find_blocks(ROOT / "README.md", "README.md") if "class Llava" in b.text]
    assert len(sketches) == 1
    assert all(f"def {name}(" in sketches[0] for name in REQUIRED_HOOKS)
    assert all(f"    {name} = " in sketches[0] for name in REQUIRED_ATTRIBUTES)


@pytest.mark.parametrize("page", PAGES)
def test_files_it_names_exist(page: str) -> None:
    """Links to files and paths of the repository are not dead; anchors within the site are checked by `make docs`."""
    text = re.sub(r"<!--.*?-->", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    folder = Path(page).parent
    linked = [folder / target for target in re.findall(r"\]\(([^)#\s]+)", text) if "://" not in target]
    named = [Path(path) for path in re.findall(_OWN, text) if "..." not in path]
    dead = [str(path) for path in (*linked, *named) if not (ROOT / path).exists()]
    assert not dead, f"{page} names files that do not exist: {', '.join(dead)}"


def test_every_target_is_in_the_table_of_what_to_run() -> None:
    """CONTRIBUTING says what each documented target of the Makefile proves or does, and names no other."""
    documented = re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.partition("\n## What to run\n")[2].partition("\n## ")[0]
    named = re.findall(r"`make ([a-z-]+)`", section)
    assert documented
    missing, unknown = sorted({*documented} - {*named}), sorted({*named} - {*documented})
    assert not missing, f"add to the table of CONTRIBUTING.md, under What to run: {', '.join(missing)}"
    assert not unknown, f"the Makefile has no {', '.join(unknown)}"
