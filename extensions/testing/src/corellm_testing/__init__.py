"""Tools of plugin authors: the contract's rules as a test class and their oracle, `inspection`, `scaffold`.

    from corellm_testing import AdapterContract
    from corellm_llava import Llava

    class TestLlava(AdapterContract):
        adapter = Llava

An adapter that takes text alone keeps `TextContract`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from corellm_testing.contract import AdapterContract, TextContract
    from corellm_testing.logits_processors import check_logits_processor
    from corellm_testing.plain_model import PlainModel, causal, generate_plain, plain_weights, rotated
    from corellm_testing.reference import Continuation, Media, Reference, generate_one
    from corellm_testing.rules import ContractBroken

__all__ = [
    "AdapterContract",
    "Continuation",
    "ContractBroken",
    "Media",
    "PlainModel",
    "Reference",
    "TextContract",
    "causal",
    "check_logits_processor",
    "generate_one",
    "generate_plain",
    "plain_weights",
    "rotated",
]

_HOMES = {
    "AdapterContract": "corellm_testing.contract",
    "Continuation": "corellm_testing.reference",
    "ContractBroken": "corellm_testing.rules",
    "Media": "corellm_testing.reference",
    "PlainModel": "corellm_testing.plain_model",
    "Reference": "corellm_testing.reference",
    "TextContract": "corellm_testing.contract",
    "causal": "corellm_testing.plain_model",
    "check_logits_processor": "corellm_testing.logits_processors",
    "generate_one": "corellm_testing.reference",
    "generate_plain": "corellm_testing.plain_model",
    "plain_weights": "corellm_testing.plain_model",
    "rotated": "corellm_testing.plain_model",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use: a tiny checkpoint needs neither pytest nor hypothesis."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
