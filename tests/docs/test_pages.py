"""Runs every code block of the README, of CONTRIBUTING, of READMEs of plugins and extensions, and of `docs/`.

A page's blocks are run in their order, in a folder that looks like a checkout. The fence gives a block's kind; an
unknown kind fails, so no block is skipped by accident.

    python          run, in one namespace per page
    console         lines after `$ ` are commands, the others what they print
    sh, or indented by four spaces
                    commands, one per line
    text            what the block before it printed, an error's last line included; `...` matches anything,
                    and on a line of its own any lines, or none. A text that no block prints has
                    `<!-- not run: why -->` before it
    toml, json, yaml, jinja
                    parsed
    diff            changes the file of its title, which must have the old lines once
    <!-- setup ... -->
                    Python that readers do not see, for what readers have and tests do not

A block with `title="path"` is written to that file, for the blocks after it; Python in it is not run.

    corellm serve   its options are checked
    curl            its body is checked
    corellm         run, in this process. A hub model is replaced by a tiny random one of the same architecture
    python          run, in this process
    pytest          of a project that the page made: run, in a process, without the slow rules of its contract, which
                    `-m full` runs, too. Otherwise its tests are listed, as they run anyway
    cat, find, ...  run, by bash
    pip install     of a project that the page made: run, without dependencies, into the page's folder. Otherwise
                    checked: paths and extras exist, distributions are the project's own dependencies, as pinned
    make            checked: the Makefile has the target
    python -m build checked: there is a project, whose wheel was built when it was installed
    hf download     writes a tiny random checkpoint

Media files that the repository does not have (`image.png`) are in `stand_ins.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.docs.blocks import find_blocks
from tests.docs.reader import reading
from tests.docs.stand_ins import write_media, write_published

ROOT = Path(__file__).resolve().parents[2]
WRITTEN = ("README.md", "CONTRIBUTING.md", "plugins/*/README.md", "extensions/*/README.md", "docs/**/*.md")
PAGES = sorted(str(path.relative_to(ROOT)) for pattern in WRITTEN for path in ROOT.glob(pattern))


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a function for a download: it writes the stand-in, once per run."""
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
    """Every block of the page runs, and prints what the page shows."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    _follow(page, tmp_path, published, monkeypatch)


@pytest.mark.full
@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "extensions/testing/README.md"])
def test_whole_contracts(page: str, tmp_path: Path, published: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plugins that the page makes keep every rule of the contract."""
    _follow(page, tmp_path, published, monkeypatch, whole=True)


def _follow(page: str, here: Path, published: Any, monkeypatch: pytest.MonkeyPatch, *, whole: bool = False) -> None:
    monkeypatch.setattr("corellm.loading.checkpoint.download", published)
    write_media(here)
    with reading(here, whole=whole) as reader:
        reader.follow(find_blocks(ROOT / page, page))
