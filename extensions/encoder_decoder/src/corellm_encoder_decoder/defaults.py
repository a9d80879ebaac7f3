"""What adapters need not say of states that a decoder attends to, and which kind of them a model has.

Knows transformers' configurations; imports transformers for an encoder-decoder only.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from corellm.config import EngineConfig
from corellm.errors import CheckpointError, ConfigError, ContractError
from corellm.hookspecs import DecoderPrompt, ModelContext, hookimpl
from corellm.plugin.hook_callers import HookCallers, adapter_implements

if TYPE_CHECKING:
    from torch import Tensor

    from corellm.loading.attended_states import AttendedStates

_POSITIONS = ("max_source_positions", "max_position_embeddings")
"""Names of an encoder's number of positions in transformers' configurations."""
_DEFAULT_POSITIONS = 2048


class StatesDefaults:
    """Defaults of `get_max_encoder_states`, `get_decoder_prompt` and `get_encoder_states`: as transformers says."""

    def __init__(self, context: ModelContext) -> None:
        self.context = context

    def of_model(self, config: EngineConfig, hooks: HookCallers) -> AttendedStates | None:
        """Return whose states the model's decoder attends to; None for one that attends to its own tokens alone.

        Raises:
            ConfigError: it cannot be run as configured.
            ContractError: the adapter says of both kinds that it is one.
        """
        most, of_items = hooks.get_max_encoder_states(), adapter_implements(hooks.get_visible_states)
        if most is None and not of_items:
            return None
        if most is not None and of_items:
            raise ContractError(
                "get_max_encoder_states makes this model an encoder-decoder, get_visible_states a decoder that attends "
                "to items beside its prompt; implement one of them"
            )
        if config.cache.kv_cache_dtype != "auto":
            states = "items" if of_items else "an encoder-decoder's encoder"
            raise ConfigError(
                f"kv_cache_dtype={config.cache.kv_cache_dtype!r}: the states of {states} are not quantized; leave it "
                "out"
            )
        from corellm_encoder_decoder.attended import StatesOfEncoder, StatesOfItems

        return StatesOfItems(hooks) if most is None else StatesOfEncoder(hooks, most)

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
