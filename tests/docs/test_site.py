"""The built site: every image that a page shows is in it, and tables can be read on a phone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mkdocs.config import load_config
from mkdocs.structure.files import get_files, set_exclusions

from docs.generate.events import on_page_content

ROOT = Path(__file__).resolve().parents[2]
IMAGES = {
    (page, found)
    for page in (ROOT / "docs").rglob("*.md")
    for found in re.findall(r"!\[[^\]]*\]\((?!https?:)([^) ]+)", page.read_text(encoding="utf-8"))
}


@pytest.mark.filterwarnings("ignore")
def test_every_image_of_a_page_is_in_the_site() -> None:
    """None is excluded by `exclude_docs`, which mkdocs says only in passing."""
    config = load_config(str(ROOT / "mkdocs.yml"))
    files = get_files(config)
    set_exclusions(files, config)
    included = {file.src_uri for file in files if file.inclusion.is_included()}
    shown = {(page.parent / name).resolve().relative_to(ROOT / "docs").as_posix() for page, name in IMAGES}
    assert "img/similarity.png" in shown
    assert shown <= included
    assert not {name for name in included if name.startswith("generate/")}


def test_cells_are_labelled_with_their_columns_heads() -> None:
    """As a phone shows them; a head that is empty labels nothing, and what is no table stays as it is."""
    page = (
        "<p>x</p><table>\n<thead><tr><th></th><th>a <code>b</code> &amp; c</th></tr></thead>\n"
        "<tbody><tr>\n<td>1</td><td style='text-align: right'>2</td></tr></tbody></table>"
    )
    labelled = on_page_content(page)
    assert labelled == page.replace("<td style", '<td data-label="a b &amp; c" style')
