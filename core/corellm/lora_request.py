"""The LoRA adapter of a request: its name and where its files are.

Knows neither files nor weights: `corellm-lora` reads them, where the model was loaded with `enable_lora`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from corellm.errors import InvalidParameterError
from corellm.prompts import is_unicode

KEY = "lora_request"
"""The key of a prompt that has one."""


@dataclass(frozen=True, slots=True)
class LoRARequest:
    """An adapter, as `generate` and `chat` take it. What tells it from others is what its files hold.

    Raises:
        InvalidParameterError: a field is of the wrong type.
    """

    lora_name: str
    """What messages call it."""
    lora_int_id: int
    """A number of at least 1; scripts have it, and it is checked and not used."""
    lora_path: str
    """Directory with `adapter_config.json` and `adapter_model.safetensors`, as PEFT writes them."""

    def __post_init__(self) -> None:
        if not isinstance(self.lora_name, str) or not self.lora_name or not is_unicode(self.lora_name):
            raise InvalidParameterError(f"lora_name must be a text, got {self.lora_name!r:.100}", param=KEY)
        if type(self.lora_int_id) is not int or self.lora_int_id < 1:
            raise InvalidParameterError(
                f"lora_int_id must be an integer of at least 1, got {self.lora_int_id!r:.100}", param=KEY
            )
        object.__setattr__(self, "lora_path", _path(self.lora_path))


def _path(given: Any) -> str:
    path = given.__fspath__() if hasattr(given, "__fspath__") else given
    if not isinstance(path, str) or not path:
        raise InvalidParameterError(f"lora_path must be a directory, got {given!r:.100}", param=KEY)
    return path


def keys_of_each(given: Any, count: int) -> list[Mapping[str, Any] | None]:
    """Return the keys that prompts get for `lora_request`, which is one for all, a list of one each, or None.

    Raises:
        InvalidParameterError: not one for each prompt.
    """
    is_list = isinstance(given, Sequence) and not isinstance(given, (str, bytes))
    if is_list and len(given) != count:
        raise InvalidParameterError(
            f"lora_request has {len(given)} entries for {count} prompts; give one for all, or one each", param=KEY
        )
    return [None if one is None else {KEY: one} for one in (given if is_list else [given] * count)]


def with_keys(given: Any, keys: Mapping[str, Any] | None) -> Any:
    """Return the keys that a call was given for a prompt, with those of `keys_of_each`."""
    return {**given, **keys} if keys and isinstance(given, Mapping) else given or keys
