"""GGUF files of the hub, named as llama.cpp names them: `owner/name:Q4_K_M`.

A repository has a model in many types, each in a file or in parts, and encoders beside them: only those that are meant
are downloaded.
"""

from __future__ import annotations

import glob
import logging
import re
from collections.abc import Sequence
from pathlib import Path

from corellm.errors import CheckpointError
from corellm.loading.checkpoint import download
from corellm_quantization.gguf.checkpoint import NO_TOWER, files_of

logger = logging.getLogger(__name__)

_TOWER_TYPES = ("F16", "BF16", "Q8_0", "F32")
"""Types of encoders in order of preference, if none has the model's type."""


def download_gguf(model: str, revision: str | None, mmproj: str | None) -> tuple[Path, str]:
    """Return a model's file and its encoder's, from the hub or from its cache.

    Args:
        model: `owner/name:TYPE`, or `owner/name:FILE`.
        revision: None for the newest.
        mmproj: the encoder's name in the repository, or a file here; `none` for none, None for one that fits.

    Returns:
        The path of the first part, and what `make_checkpoint` takes as `mmproj`.

    Raises:
        CheckpointError: the hub did not give them, or it is not clear which are meant.
    """
    name, _, wanted = model.partition(":")
    folder, failure = None, None
    try:
        listed = _listed(name, revision)
    except Exception as error:  # of the hub, or of its client, which is another one in other releases
        folder, failure = download(name, revision, [], what="model"), error
        logger.warning("%s: the hub did not answer (%s); its cache here is used", name, type(error).__name__)
        listed = [file.relative_to(folder).as_posix() for file in sorted(folder.rglob("*.gguf"))]
    names = [Path(file) for file in listed if file.endswith(".gguf")]
    towers = [file for file in names if "mmproj" in file.name]
    try:
        files = _files(model, wanted, sorted({*names} - {*towers}))
    except CheckpointError as error:
        if failure is None:
            raise
        raise CheckpointError(
            f"{error}. So it is in the cache here: the hub did not say what it has ({type(failure).__name__}); check "
            f"the name, the network and your access token"
        ) from failure
    chosen = _tower(towers, wanted) if mmproj is None else mmproj
    tower = next((file for file in names if str(file) == chosen), None)
    needed = [*files] if tower is None else [*files, tower]
    if folder is None:
        folder = download(name, revision, [glob.escape(file.as_posix()) for file in needed], what="model")
    return folder / files[0], str(folder / tower) if tower is not None else mmproj or NO_TOWER


def _listed(name: str, revision: str | None) -> Sequence[str]:
    """Return the files of a repository, asked of the hub."""
    from huggingface_hub import HfApi

    return [*HfApi().list_repo_files(name, revision=revision)]


def _files(model: str, wanted: str, names: Sequence[Path]) -> list[Path]:
    """Return the parts of the only file of that name or type."""
    named = [file for file in names if str(file) == wanted]
    found = files_of(named or _of_type(names, wanted), {*names}.__contains__)
    if len(found) != 1:
        shown = [str(file) for file in [parts[0] for parts in found] or names]
        if not shown:
            raise CheckpointError(f"{model}: there are no GGUF files of models under this name")
        raise CheckpointError(
            f"{model}: {len(found) or 'no'} GGUF files have this type; name a type, or one of these, behind the colon: "
            f"{', '.join(shown[:20])}{', ...' if len(shown) > 20 else ''}"
        )
    return found[0]


def _tower(towers: Sequence[Path], wanted: str) -> str | None:
    """Return the name of the encoder that is taken, if there are any."""
    for kind in (wanted, *_TOWER_TYPES):
        if found := _of_type(towers, kind):
            return str(min(found))
    return str(min(towers)) if towers else None


def _of_type(names: Sequence[Path], kind: str) -> list[Path]:
    """Return files whose names have a type in them: a word, but for what an underscore joins to its beginning."""
    word = re.compile(rf"(?<![A-Za-z0-9]){re.escape(kind)}(?![A-Za-z0-9_])", re.IGNORECASE)
    return [file for file in names if word.search(str(file.with_suffix("")))]
