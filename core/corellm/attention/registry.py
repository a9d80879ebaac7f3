"""Selects an attention backend among those of the core and of extensions."""

from __future__ import annotations

import importlib
import inspect
from typing import TYPE_CHECKING

from corellm.errors import ConfigError, ContractError
from corellm.hookspecs import hookimpl
from corellm.plugin.extensions import is_text, offers_by_name

if TYPE_CHECKING:
    import torch

    from corellm.attention.backend import AttentionBackend


class CoreBackends:
    """The extension that registers the core's own backends."""

    @hookimpl
    def register_attention_backends(self) -> dict[str, str]:
        """Return the torch reference and the CPU backend."""
        return {
            "reference": "corellm.attention.reference:ReferenceAttention",
            "cpu": "corellm.attention.cpu:CpuAttention",
        }


def select_backend(device: torch.device, dtype: torch.dtype, wanted: str | None = None) -> AttentionBackend:
    """Make the attention backend to use.

    Args:
        device, dtype: of the KV cache.
        wanted: a backend's name; None for the one of highest priority that can run.

    Raises:
        ConfigError: `wanted` is unknown or cannot run there; names those known and the reason.
    """
    offers = _offers()
    if wanted is not None:
        if wanted not in offers:
            raise ConfigError(f"attention_backend {wanted!r} is not known; known: {', '.join(sorted(offers))}")
        backend = _load(*offers[wanted])
        reason = backend.unsupported(device, dtype)
        if reason is not None:
            raise ConfigError(f"attention_backend {wanted!r} {reason}; leave it out to have one chosen")
        return backend()
    backends = [_load(*offer) for offer in offers.values()]
    return max((b for b in backends if b.unsupported(device, dtype) is None), key=lambda b: b.priority)()


def reasons_against(device: torch.device, dtype: torch.dtype) -> dict[str, str]:
    """Return the backends that cannot run somewhere, and why."""
    reasons = {name: _load(*offer).unsupported(device, dtype) for name, offer in _offers().items()}
    return {name: reason for name, reason in reasons.items() if reason is not None}


def _load(extension: str, location: str) -> type[AttentionBackend]:
    """Return a backend that an extension names, imported.

    Raises:
        ContractError: it cannot be imported, or is no backend.
    """
    from corellm.attention.backend import AttentionBackend

    module, _, name = location.partition(":")
    try:
        backend = getattr(importlib.import_module(module), name)
    except Exception as error:
        raise ContractError(
            f"{extension}: register_attention_backends names {location!r}, which cannot be imported: "
            f"{type(error).__name__}: {error}"
        ) from error
    if not (isinstance(backend, type) and issubclass(backend, AttentionBackend)):
        raise ContractError(f"{extension}: {location!r} is no corellm.attention.backend.AttentionBackend")
    forward = inspect.signature(backend.forward)
    if [*forward.parameters] != [*inspect.signature(AttentionBackend.forward).parameters]:
        raise ContractError(
            f"{extension}: {location!r} has forward{forward}; make it forward(self, call, cache, "
            f"metadata): query, key, value, scale, sliding_window and rotary are fields of the AttentionCall"
        )
    if hasattr(backend, "recordable"):
        raise ContractError(f"{extension}: {location!r} has recordable; it is called capturable now")
    return backend


def _offers() -> dict[str, tuple[str, str]]:
    """Return the extensions that register backends, and where each backend is, by its name.

    Raises:
        ContractError: two extensions register the same name.
    """
    offers = offers_by_name("register_attention_backends", is_text, "offer an attention backend")
    return {name: (extension, location) for extension, name, location in offers}
