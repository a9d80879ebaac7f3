"""The LoRA adapter of a request: its name and where its files are.

Knows neither files nor weights: they are read where the model was loaded with `enable_lora`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from corellm.errors import InvalidParameterError
from corellm.prompts import LORA_KEY as KEY
from corellm.prompts import is_unicode


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
    """Directory with `adapter_config.json` and `adapter_model.safetensors`, as PEFT writes them; or a hub name."""

    def __post_init__(self) -> None:
        if not isinstance(self.lora_name, str) or not self.lora_name or not is_unicode(self.lora_name):
            raise InvalidParameterError(
                f"lora_name must be a text that is not empty, got {self.lora_name!r:.100}", param=KEY
            )
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
