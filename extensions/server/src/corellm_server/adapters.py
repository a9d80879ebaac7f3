"""LoRA adapters that a server serves under names of their own.

Knows names and requests; what an adapter may be, `corellm-lora` knows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from corellm.errors import ConfigError
from corellm.prompts import LORA_KEY as KEY
from corellm.serving import InputProcessor

if TYPE_CHECKING:
    from corellm_lora.lora_request import LoRARequest


def adapters_of(given: Collection[str], taken: Collection[str], processor: InputProcessor) -> Mapping[str, LoRARequest]:
    """Return the adapters of `--lora-modules`, by name, after checking that the model can have each.

    Args:
        given: `name=directory` each.
        taken: names of the model.
        processor: of the model's prompts.

    Raises:
        ConfigError: a name is taken.
        RequestError: one is none for this model.
    """
    from corellm import LoRARequest

    adapters: dict[str, LoRARequest] = {}
    for number, one in enumerate(given, 1):
        name, _, path = one.partition("=")
        if name in taken or name in adapters:
            raise ConfigError(f"lora_modules: {name!r:.100} is the name of another model here; choose another one")
        adapters[name] = LoRARequest(name, number, path)
        processor.process({"prompt": "a", KEY: adapters[name]})
    return adapters


def keys_of(adapters: Mapping[str, LoRARequest], body: Mapping[str, Any]) -> Mapping[str, LoRARequest]:
    """Return the keys that prompts of a request get, by the model that it names."""
    name = body.get("model")
    return {KEY: adapters[name]} if isinstance(name, str) and name in adapters else {}
