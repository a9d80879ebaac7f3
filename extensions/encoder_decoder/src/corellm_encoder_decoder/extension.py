"""What corellm calls of this distribution. Imports neither torch nor transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from corellm.hookspecs import hookimpl

if TYPE_CHECKING:
    from corellm.hookspecs import ModelContext
    from corellm_encoder_decoder.defaults import StatesDefaults


class EncoderDecoders:
    """States that a decoder attends to: those of an encoder, or of items."""

    @hookimpl
    def offer_attended_states(self, context: ModelContext) -> StatesDefaults:
        """Return what finds whether a model has some, and the defaults of the hooks on them."""
        from corellm_encoder_decoder.defaults import StatesDefaults

        return StatesDefaults(context)
