"""Keys of prompts that extensions read, such as the name of an adapter.

Knows their names and who offers them; does not know what a value means.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from corellm.errors import ContractError, install_hint
from corellm.plugin.extensions import call_extensions

if TYPE_CHECKING:
    from corellm.hookspecs import ModelContext
    from corellm.scheduling.request_part import RequestPart


class PromptKey(Protocol):
    """A key that prompts may have beside the core's, and what it makes of a request."""

    name: str
    """The key: `"adapter"` for `{"prompt": ..., "adapter": ...}`."""

    def read(self, value: Any) -> Any:
        """Return what `around` needs of a value that is not None: plain data, which may go to another process.

        Called in the threads that prepare prompts, before anything else of the prompt is looked at.

        Raises:
            PromptError: the value is wrong; says which are right.
        """
        ...

    def variant(self, read: Any) -> str:
        """Return what names the encoders of the prompt's items, by what `read` returned; empty for the model's own.

        Items of one variant are encoded together, with `StepPart.encoding` around, and are cached by it.
        """
        ...

    def around(self, part: RequestPart, read: Any) -> RequestPart:
        """Return a `corellm.scheduling.part_around.PartAround` of a request's part, by what `read` returned."""
        ...


NO_KEYS: Mapping[str, PromptKey] = MappingProxyType({})
DISTRIBUTIONS = MappingProxyType({"lora_request": "lora"})
"""Keys that corellm's own extensions read, and the last part of the name of each."""


def way_out(key: str, otherwise: str) -> str:
    """Return the end of a message on a key that is not read: how to install what reads it, if that is known."""
    return f"; it comes with {install_hint(DISTRIBUTIONS[key])}" if key in DISTRIBUTIONS else otherwise


def find_prompt_keys(context: ModelContext) -> Mapping[str, PromptKey]:
    """Return the keys that the installed extensions read in prompts for a model, by name.

    Raises:
        ContractError: two extensions read the same key.
    """
    keys: dict[str, PromptKey] = {}
    owners: dict[str, str] = {}
    for extension, key in call_extensions("offer_prompt_key", _is_key, context=context):
        if key.name in keys:
            raise ContractError(
                f"{extension} and {owners[key.name]} both read the prompt key {key.name!r}; uninstall one"
            )
        keys[key.name], owners[key.name] = key, extension
    return keys


def _is_key(offered: Any) -> bool:
    has_methods = all(callable(getattr(offered, method, None)) for method in ("read", "variant", "around"))
    return has_methods and isinstance(getattr(offered, "name", None), str)
