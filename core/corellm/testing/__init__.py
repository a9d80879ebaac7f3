"""Test tools of plugin authors: the contract's rules as a test class, its oracle, and parts of tiny checkpoints.

    from corellm.testing import AdapterContract
    from corellm_llava import Llava

    class TestLlava(AdapterContract):
        adapter = Llava

An adapter that takes text alone keeps `TextContract`.

Needs the extra `corellm[testing]`, `corellm.testing.checkpoints` alone excepted.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from corellm.testing.contract import AdapterContract, TextContract
    from corellm.testing.reference import Continuation, Media, Reference, generate_one
    from corellm.testing.rules import ContractBroken

__all__ = [
    "AdapterContract",
    "Continuation",
    "ContractBroken",
    "Media",
    "Reference",
    "TextContract",
    "generate_one",
]

_HOMES = {
    "AdapterContract": "corellm.testing.contract",
    "Continuation": "corellm.testing.reference",
    "ContractBroken": "corellm.testing.rules",
    "Media": "corellm.testing.reference",
    "Reference": "corellm.testing.reference",
    "TextContract": "corellm.testing.contract",
    "generate_one": "corellm.testing.reference",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use: a tiny checkpoint needs neither pytest nor hypothesis."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
