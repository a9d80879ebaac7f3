"""Where a checkpoint is and which plugin serves it, seen before anything heavy is imported.

What can be refused is refused here: no such model, broken files, no plugin. Imports no torch and no transformers.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from corellm.config import ModelConfig
from corellm.plugins import AdapterEntry, find_adapter
from corellm.worker.checkpoint import read_architectures, resolve_checkpoint
from corellm.worker.checkpoint_files import check_files


@dataclass(frozen=True)
class LocatedModel:
    """A checkpoint on disk whose files are whole, and the plugin that serves it."""

    path: Path
    entry: AdapterEntry


def locate(config: ModelConfig) -> LocatedModel:
    """Find the checkpoint, check its files, and find the plugin.

    Raises:
        CheckpointError, PluginError: what is wrong, and the way out.
    """
    path = resolve_checkpoint(config)
    entry = find_adapter(read_architectures(path), adapter=config.adapter)
    check_files(path)
    return LocatedModel(path, entry)
