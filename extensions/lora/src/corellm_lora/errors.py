"""How an adapter is refused."""

from __future__ import annotations

from corellm.errors import InvalidParameterError
from corellm.prompts import LORA_KEY as KEY


def refusal(where: str, reason: str) -> InvalidParameterError:
    """Return the error for an adapter.

    Args:
        where: its name.
        reason: what is wrong, and the way out.
    """
    return InvalidParameterError(f"LoRA adapter {where!r:.100}: {reason}", param=KEY)
