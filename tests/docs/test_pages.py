"""Every code block of the README, of CONTRIBUTING, of the plugins' READMEs and of `docs/` does what its page says.

A page's blocks are tried in their order, as a reader would, in a folder that looks like a checkout. What a block is,
its fence says; a fence of no kind fails, so nothing on a page is untried by accident.

    python          run, in one namespace per page
    console         lines after `$ ` are commands, the others what they print
    sh, or indented by four spaces
                    commands, one a line
    text            what the block before it printed, an error's last line included; `...` stands for anything.
                    A text that nothing prints says so: `<!-- not run: why -->` before it
    toml, json, yaml, jinja
                    parsed
    diff            changes the file of its title, whose lines must be there once
    <!-- setup ... -->
                    Python that readers do not see, for what they have and a test does not

A `title="path"` makes a file of a block, at that path, for what comes after it; Python there is not run by itself.

    corellm         run, in this process. A model of the hub is a tiny random one of the same architecture here
    python          run, in this process
    pytest          run, in a process
    cat, find, ...  run, by bash
    pip install     of a project that the page made: done, without dependencies, into the page's folder. Else checked:
                    paths and extras exist, distributions are the project's own dependencies, as pinned
    make            checked: the Makefile has the target
    python -m build checked: there is a project, whose wheel was built when it was installed
    hf download     done, with a tiny random checkpoint

Media files that a page takes for the reader's own (`image.png`) are in `stand_ins.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.docs.blocks import find_blocks
from tests.docs.reader import reading
from tests.docs.stand_ins import write_media, write_published

ROOT = Path(__file__).resolve().parents[2]
WRITTEN = ("README.md", "CONTRIBUTING.md", "plugins/*/README.md", "docs/**/*.md")
PAGES = sorted(str(path.relative_to(ROOT)) for pattern in WRITTEN for path in ROOT.glob(pattern))


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Downloads a checkpoint: writes its stand-in, once per run."""
    written: dict[str, Path] = {}

    def download(name: str, *_: Any, **__: Any) -> Path:
        if name not in written:
            path = tmp_path_factory.mktemp("published") / "checkpoint"
            write_published(name, path)
            written[name] = path
        return written[name]

    return download


@pytest.mark.parametrize("page", PAGES)
def test_page(page: str, tmp_path: Path, published: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever does what the page says sees what the page says."""
    monkeypatch.setattr("corellm.worker.checkpoint._download", published)
    write_media(tmp_path)
    with reading(tmp_path) as reader:
        reader.follow(find_blocks(ROOT / page, page))
