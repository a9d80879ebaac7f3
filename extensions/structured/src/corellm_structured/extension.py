"""What corellm calls of this distribution. Imports neither torch nor transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from corellm.hookspecs import hookimpl
from corellm.structured_outputs import STRUCTURED

if TYPE_CHECKING:
    from corellm.sampling.constraint import MakeConstraint


class Structured:
    """Constraints that hold outputs to a form."""

    @hookimpl
    def register_constraints(self, tokenizer: Any, vocab_size: int) -> dict[str, MakeConstraint] | None:
        """Return what makes them."""
        if tokenizer is None:
            return None
        from corellm_structured.constraint import StructuredConstraints

        return {STRUCTURED: StructuredConstraints(tokenizer, vocab_size)}
