"""LoRA adapters that a server serves under names of their own, some of which may come and go while it runs.

Knows names, requests and the directory of those that come later; what an adapter may be, `corellm-lora` knows.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corellm.errors import ConfigError, InvalidParameterError
from corellm.prompts import LORA_KEY as KEY
from corellm.serving import InputProcessor
from corellm_server.directories import directory_below
from corellm_server.errors import ApiError

if TYPE_CHECKING:
    from corellm_lora.lora_request import LoRARequest

_MOST = 4096
"""Adapters that are served at once."""


class ServedAdapters:
    """The adapters, by the names of models that clients ask for.

    Args:
        given: `name=directory` each, those of `--lora-modules`.
        taken: names of the model.
        processor: of the model's prompts.
        root: the directory of those that are added later; None for none.

    Raises:
        ConfigError: a name is taken.
        RequestError: one is none for this model.
    """

    def __init__(
        self, given: Collection[str], taken: Collection[str], processor: InputProcessor, root: str | None = None
    ) -> None:
        self._taken, self._processor = frozenset(taken), processor
        self._root = None if root is None else Path(root).resolve()
        self._served: dict[str, LoRARequest] = {}
        self._number, self._one_at_a_time = 0, threading.Lock()
        for one in given:
            name, _, path = one.partition("=")
            if name in self._taken:
                raise ConfigError(f"lora_modules: {name!r:.100} is the name of another model here; choose another one")
            self._served[name] = self._checked(name, path)

    def __iter__(self) -> Iterator[str]:
        return iter([*self._served])

    def __contains__(self, name: object) -> bool:
        return name in self._served

    def keys_of(self, body: Mapping[str, Any]) -> Mapping[str, LoRARequest]:
        """Return the keys that prompts of a request get, by the model that it names.

        Raises:
            ApiError: 404, it named an adapter that has been removed since.
        """
        name = body.get("model")
        if not isinstance(name, str) or name in self._taken:
            return {}
        return {KEY: self._of(name)}

    def add(self, name: str, path: str, *, replaces: bool) -> None:
        """Serve an adapter from now on, after checking that the model can have it; this reads its files.

        Args:
            name: of the adapter.
            path: in the directory of those that come later.
            replaces: whether an adapter of this name makes way.

        Raises:
            ApiError: the name is taken, or the path is not in the directory, or there are too many.
            RequestError: it is none for this model.
        """
        with self._one_at_a_time:
            if name in self._taken or (name in self._served and not replaces):
                told = f"lora_name: {name!r:.100} is served already; choose another"
                told += "" if name in self._taken else ", or replace it with load_inplace"
                raise ApiError(400, told, param="lora_name")
            if name not in self._served and len(self._served) >= _MOST:
                raise ApiError(400, f"lora_name: {_MOST} adapters are served already; unload one", param="lora_name")
            folder = str(self._inside(path))
            try:
                self._served[name] = self._checked(name, folder)
            except InvalidParameterError as error:
                raise ApiError(400, str(error), param="lora_path") from error

    def remove(self, name: str) -> None:
        """Serve an adapter no more; requests that are prepared go on.

        Raises:
            ApiError: 404, there is none.
        """
        if self._served.pop(name, None) is None:
            there = ", ".join(self._served) or "none"
            told = f"lora_name: there is no LoRA adapter {name!r:.100} here; there is {there}"
            raise ApiError(404, told, param="lora_name", code="model_not_found")

    def _of(self, name: str) -> LoRARequest:
        try:
            return self._served[name]
        except KeyError:
            raise ApiError(
                404, f"there is no LoRA adapter {name[:100]!r} here", param="model", code="model_not_found"
            ) from None

    def _checked(self, name: str, path: str) -> LoRARequest:
        from corellm import LoRARequest

        self._number += 1
        request = LoRARequest(name, self._number, path)
        self._processor.process({"prompt": "a", KEY: request})
        return request

    def _inside(self, given: str) -> Path:
        """Return a path in the directory, none of whose files is elsewhere.

        Raises:
            ApiError: it is not there. Whether there is such a path elsewhere is not told.
        """
        assert self._root is not None
        folder = directory_below(self._root, given)
        if folder is None:
            raise ApiError(
                400, f"lora_path: {given!r:.100} is no directory that adapters may be loaded from; give one below "
                "that of allow_runtime_lora_updating", param="lora_path",
            )  # fmt: skip
        return folder
