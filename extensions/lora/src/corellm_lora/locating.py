"""Finds an adapter's directory: a local one, or a snapshot of one on the hub, by the rule for models.

Knows names and paths; what is in a directory, `adapter_files` knows.
"""

from __future__ import annotations

import os
from pathlib import Path

from corellm.errors import CheckpointError
from corellm.loading import checkpoint
from corellm_lora.adapter_files import CONFIG, WEIGHTS
from corellm_lora.errors import refusal


def locate(name: str, path: str) -> Path:
    """Return the directory of an adapter; one of the hub is downloaded if it is not in the hub's cache.

    Args:
        name: for messages.
        path: a directory, or a hub name (owner/name).

    Raises:
        InvalidParameterError: there is no such adapter.
    """
    if os.path.exists(path) or path.startswith((".", "/", "~")) or path.count("/") != 1:
        return Path(path)
    if os.path.isdir(owner := path.partition("/")[0]):
        raise refusal(
            name, f"there is no directory {path!r:.200}; the hub is not asked, as there is a directory {owner!r:.100}"
        )
    try:
        return checkpoint.download(path, None, [CONFIG, WEIGHTS], what="LoRA adapter")
    except CheckpointError as error:
        raise refusal(name, str(error)) from error
