"""Which attention backend runs: those that extensions offer, the core's own among them, the best one that can."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from corellm.errors import ConfigError, ContractError
from corellm.hookspecs import hookimpl
from corellm.plugins import load_extensions

if TYPE_CHECKING:
    import torch

    from corellm.attention.backend import AttentionBackend


class CoreBackends:
    """The extension through which the core's own backends come in."""

    @hookimpl
    def register_attention_backends(self) -> dict[str, str]:
        """The torch reference and the CPU backend."""
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
    offers: dict[str, str] = {}
    for offered in load_extensions().hook.register_attention_backends():
        offers.update(offered)
    if wanted is not None:
        if wanted not in offers:
            raise ConfigError(f"attention_backend {wanted!r} is not known; known: {', '.join(sorted(offers))}")
        backend = _load(offers[wanted])
        reason = backend.unsupported(device, dtype)
        if reason is not None:
            raise ConfigError(f"attention_backend {wanted!r} {reason}; leave it out to have one chosen")
        return backend()
    able = [b for b in map(_load, offers.values()) if b.unsupported(device, dtype) is None]
    return max(able, key=lambda b: b.priority)()


def _load(location: str) -> type[AttentionBackend]:
    module, _, name = location.partition(":")
    backend: type[AttentionBackend] | None = getattr(importlib.import_module(module), name, None)
    if backend is None:
        raise ContractError(f"register_attention_backends names {location!r}, but {module} has no {name!r}")
    return backend
