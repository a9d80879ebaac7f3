"""The core's implementations of the hooks of encoder-decoders: as transformers' configurations and `generate` say.

Registered last in every model's plugin manager. Knows configurations and the model's encoder; knows neither blocks nor
steps.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from corellm.errors import CheckpointError
from corellm.hookspecs import DecoderPrompt, ModelContext, hookimpl

if TYPE_CHECKING:
    from torch import Tensor

_POSITIONS = ("max_source_positions", "max_position_embeddings")
"""Names of an encoder's number of positions in transformers' configurations."""
_DEFAULT_POSITIONS = 2048


class EncoderDecoderDefaults:
    """Defaults of `get_max_encoder_states`, `get_decoder_prompt` and `get_encoder_states`."""

    def __init__(self, context: ModelContext) -> None:
        self.context = context

    @hookimpl(trylast=True)
    def get_max_encoder_states(self) -> int | None:
        """Return the encoder's positions; None for a model that is only a decoder."""
        config = self.context.hf_config
        if not config.is_encoder_decoder:
            return None
        for part in (config, config.get_text_config()):
            for name in _POSITIONS:
                value = getattr(part, name, None)
                if isinstance(value, int) and value > 0:
                    return value
        return _DEFAULT_POSITIONS

    @hookimpl(trylast=True)
    def get_decoder_prompt(self) -> DecoderPrompt:
        """Return the tokens that `generate` puts first."""
        return self._decoder_prompt

    @hookimpl(trylast=True)
    def get_encoder_states(self, model: Any, inputs_embeds: Tensor) -> Tensor:
        """Return what the model's encoder makes of the prompt."""
        states: Tensor = model.get_encoder()(inputs_embeds=inputs_embeds[None]).last_hidden_state
        return states[0]

    @cached_property
    def _decoder_prompt(self) -> DecoderPrompt:
        from transformers import GenerationConfig

        path = self.context.model_path
        if (path / "generation_config.json").is_file():
            config = GenerationConfig.from_pretrained(path)
        else:
            config = GenerationConfig.from_model_config(self.context.hf_config)
        start = config.bos_token_id if config.decoder_start_token_id is None else config.decoder_start_token_id
        if start is None:
            raise CheckpointError(
                f"{path}: neither generation_config.json nor config.json has a decoder_start_token_id or bos_token_id, "
                f"with which the decoder begins; add one"
            )
        return DecoderPrompt([start] if config.forced_bos_token_id is None else [start, config.forced_bos_token_id])
