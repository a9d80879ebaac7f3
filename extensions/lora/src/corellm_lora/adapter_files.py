"""An adapter's files: the configuration, and weights in safetensors, checked against a model before they are used.

Knows bytes and shapes; what a tensor is for, `changes` knows. Knows no slots and no requests.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from corellm.errors import InvalidParameterError
from corellm_lora.adapter_config import AdapterConfig
from corellm_lora.changes import Change, changes_of
from corellm_lora.errors import refusal
from corellm_lora.terms import Terms

if TYPE_CHECKING:
    from torch import Tensor

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


class Values(NamedTuple):
    """What an adapter has for one module."""

    tensors: Mapping[str, Tensor]
    """Tensors by their part; see `Change`."""
    scale: float
    token_ids: tuple[int, ...]


@dataclass(frozen=True)
class AdapterFiles:
    """An adapter that a model can have."""

    path: Path
    digest: bytes
    """Digest of both files, which tells the adapter from all others."""
    weights_digest: bytes
    changes: Mapping[str, Change]
    """Changes by module of the model."""
    changes_items: bool
    """Whether embeddings of items depend on it."""

    @classmethod
    def opened(cls, name: str, path: str, terms: Terms) -> AdapterFiles:
        """Return the files of an adapter, after checking all but the values of its tensors.

        Args:
            name: for messages.
            path: their directory.
            terms: of the model.

        Raises:
            InvalidParameterError: a file is absent or broken, or the adapter is none for this model.
        """
        folder = Path(path)
        config, digest = _read_config(name, folder)
        try:
            with (folder / WEIGHTS).open("rb") as opened:
                weights = hashlib.file_digest(opened, "sha256").digest()
            changes = changes_of(name, config, _shapes(name, folder / WEIGHTS), terms)
        except OSError as error:
            raise _unreadable(name, folder, error) from error
        changes_items = any(map(terms.is_of_items, changes))
        return cls(folder, hashlib.sha256(digest + weights).digest(), weights, changes, changes_items)

    def values(self) -> Mapping[str, Values]:
        """Read the tensors, by module.

        Raises:
            OSError: the file cannot be read, or is not the one that was checked.
        """
        from safetensors.torch import load

        content = (self.path / WEIGHTS).read_bytes()
        if hashlib.sha256(content).digest() != self.weights_digest:
            raise OSError(f"{WEIGHTS} changed while it was read")
        tensors = load(content)
        return {
            module: Values({part: tensors[key] for part, key in change.keys.items()}, change.scale, change.token_ids)
            for module, change in self.changes.items()
        }


def _read_config(name: str, folder: Path) -> tuple[AdapterConfig, bytes]:
    """Return what the configuration states, and its digest."""
    try:
        content = (folder / CONFIG).read_bytes()
        stated = json.loads(content.decode())
    except OSError as error:
        raise _unreadable(name, folder, error) from error
    except (ValueError, RecursionError) as error:
        raise refusal(name, f"{CONFIG} is no JSON ({error}); save the adapter again") from error
    if not isinstance(stated, dict):
        raise refusal(name, f"{CONFIG} must hold an object, got {stated!r:.60}")
    return AdapterConfig.of(stated, name), hashlib.sha256(content).digest()


def _unreadable(name: str, folder: Path, error: OSError) -> InvalidParameterError:
    reason = f"{error.strerror or error}: {folder}"
    if not folder.is_dir():
        reason = f"there is no directory {str(folder)!r:.200}; give one, or a hub name (owner/name)"
    elif not (folder / WEIGHTS).exists() and (folder / CONFIG).exists():
        reason = f"{folder} has no {WEIGHTS}; other formats run code when they are read: save it as safetensors"
    elif not (folder / CONFIG).exists():
        reason = f"{folder} has no {CONFIG}; give the directory that PEFT's save_pretrained wrote"
    return refusal(name, reason)


def _shapes(name: str, file: Path) -> Mapping[str, list[int]]:
    """Return the shapes in a file of safetensors, by tensor."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "pt") as opened:
            found = {key: opened.get_slice(key) for key in opened.keys()}  # noqa: SIM118  # it is no mapping
            for key, tensor in found.items():
                if tensor.get_dtype() not in ("F32", "F16", "BF16"):
                    raise refusal(name, f"{key} is of type {tensor.get_dtype()}; weights are F32, F16 or BF16")
            return {key: tensor.get_shape() for key, tensor in found.items()}
    except SafetensorError as error:
        raise refusal(name, f"{WEIGHTS} is broken ({error}); copy it again") from error


def plain(files: AdapterFiles, name: str) -> dict[str, Any]:
    """Return what the engine's process needs of an adapter, as plain data."""
    digest = files.digest.hex()
    return {"name": name, "path": str(files.path), "digest": digest, "variant": digest * files.changes_items}
