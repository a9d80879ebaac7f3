"""The key `lora_request` of prompts: which adapter a request has, refused where the model cannot have it.

Runs where prompts are prepared, which may be another process than the model's.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from corellm.errors import InvalidParameterError
from corellm.prompts import LORA_KEY as KEY
from corellm.scheduling.request_part import RequestPart
from corellm_lora.adapter_files import CONFIG, WEIGHTS, AdapterFiles, plain
from corellm_lora.locating import locate
from corellm_lora.lora_request import LoRARequest
from corellm_lora.request_part import AdapterOf
from corellm_lora.shelf import Shelf
from corellm_lora.terms import Terms

_MOST_KNOWN = 4096
"""Adapters whose files are not read again while they stay as they are."""


class AdapterKey:
    """The key.

    Args:
        findings: of the model; filled while it is loaded.

    Attributes:
        shelf: the adapters in memory, where the model is in this process.
    """

    name = KEY

    def __init__(self, findings: Mapping[str, Any]) -> None:
        self._findings = findings
        self._known: dict[tuple[object, ...], AdapterFiles] = {}
        self._located: dict[str, Path] = {}
        """Directories of adapters of the hub, by name: they are asked for once."""
        self._lock = threading.Lock()
        self.shelf = Shelf()

    def read(self, value: Any) -> dict[str, Any]:
        """Return the name, directory and digest of an adapter that the model can have.

        Its files are read and checked when they are new or have changed; what is read is then in the system's cache
        where the model's process reads it.

        Raises:
            InvalidParameterError: the model takes no adapters, or not this one.
        """
        terms = self._terms
        if not isinstance(value, LoRARequest):
            raise InvalidParameterError(f"lora_request must be a LoRARequest, got {value!r:.100}", param=KEY)
        return plain(self._files(value, terms), value.lora_name)

    def variant(self, read: Mapping[str, Any]) -> str:
        """Return the adapter's digest, if embeddings of items depend on it; they are other requests', too, if not."""
        return str(read["variant"])

    def around(self, part: RequestPart, read: Mapping[str, Any]) -> RequestPart:
        """Return the request's part with its adapter."""
        return AdapterOf(part, dict(read), self._terms.max_loras, self.shelf)

    @property
    def _terms(self) -> Terms:
        terms = Terms.noted(self._findings)
        if terms is None:
            raise InvalidParameterError(
                "lora_request: the model was loaded without adapters; load it with enable_lora=True", param=KEY
            )
        return terms

    def _files(self, request: LoRARequest, terms: Terms) -> AdapterFiles:
        path = self._located.get(request.lora_path) or locate(request.lora_name, request.lora_path)
        if str(path) != request.lora_path and len(self._located) < _MOST_KNOWN:
            self._located[request.lora_path] = path
        state = _state(path)
        with self._lock:  # one thread reads an adapter, and others that want it wait
            if None in state or state not in self._known:
                files = AdapterFiles.opened(request.lora_name, str(path), terms)
                if len(self._known) >= _MOST_KNOWN:
                    self._known.clear()
                self._known[state] = files
            return self._known[state]


def _state(folder: Path) -> tuple[object, ...]:
    """Return what changes whenever one of an adapter's files does; with None for one that is not there."""
    found: list[object] = [str(folder)]
    for name in (CONFIG, WEIGHTS):
        try:
            stat = (folder / name).stat()
        except (OSError, ValueError):
            found.append(None)
        else:
            found.append((stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns))
    return tuple(found)
