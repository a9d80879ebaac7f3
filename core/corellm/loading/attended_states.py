"""States that a decoder attends to beside its own tokens: the hooks' defaults, how it is probed, and what runs
and holds them.

They are what the encoder of an encoder-decoder makes of the prompt, or a prompt's items. Most models have none, and
import nothing of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from corellm.config import EngineConfig
from corellm.errors import CheckpointError, ConfigError, ContractError
from corellm.hookspecs import DecoderPrompt, ModelContext, hookimpl
from corellm.plugin.hook_callers import HookCallers, adapter_implements

if TYPE_CHECKING:
    from torch import Tensor, nn

    from corellm.loading.decoder_probe import DecoderProbe
    from corellm.loading.model_use import ModelUse
    from corellm.scheduling.block_pool import BlockPool
    from corellm.scheduling.block_user import BlockUser
    from corellm.worker.model_runner import ModelRunner
    from corellm.worker.parts.step_part import StepPart


_POSITIONS = ("max_source_positions", "max_position_embeddings")
"""Names of an encoder's number of positions in transformers' configurations."""
_DEFAULT_POSITIONS = 2048


class StatesDefaults:
    """Defaults of `get_max_encoder_states`, `get_decoder_prompt` and `get_encoder_states`: as transformers says.

    Registered last in every model's plugin manager.
    """

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


@dataclass(frozen=True)
class AttendedStates:
    """Whose states a decoder attends to."""

    of_encoder: int | None
    """Most states of an encoder-decoder's encoder; None where they are those of items."""

    @property
    def probe_class(self) -> type[DecoderProbe]:
        """How the decoder is probed."""
        from corellm.loading.cross_attention_probe import CrossAttentionProbe, ItemStatesProbe

        return ItemStatesProbe if self.of_encoder is None else CrossAttentionProbe

    def most(self, largest_item: int) -> int:
        """Return the most states of a sequence, which lie in the KV cache, given the embeddings of the largest item."""
        return largest_item if self.of_encoder is None else self.of_encoder

    def part(self, runner: ModelRunner, language_model: nn.Module) -> StepPart:
        """Return what makes them in a step."""
        if self.of_encoder is None:
            from corellm.worker.parts.item_states import ItemStates

            return ItemStates(runner, language_model)
        from corellm.worker.parts.encoder_states import EncoderStates

        return EncoderStates(runner, language_model, self.of_encoder)

    def block_user(self, pool: BlockPool, block_size: int, *, enable_caching: bool) -> BlockUser:
        """Return what holds their blocks."""
        from corellm.scheduling.encoder_prompt import StateBlocks

        return StateBlocks(pool, block_size, enable_caching=enable_caching)


def attended_states(config: EngineConfig, hooks: HookCallers, use: ModelUse) -> AttendedStates | None:
    """Return whose states a model's decoder attends to; None for one that attends to its own tokens alone.

    Raises:
        ConfigError: it cannot be run as configured.
        ContractError: the adapter says of both kinds that it is one.
    """
    of_encoder, of_items = hooks.get_max_encoder_states(), adapter_implements(hooks.get_visible_states)
    if of_encoder is None and not of_items:
        return None
    if of_encoder is not None and of_items:
        raise ContractError(
            "get_max_encoder_states makes this model an encoder-decoder, get_visible_states a decoder that attends to "
            "items beside its prompt; implement one of them"
        )
    kind, states = "is an encoder-decoder", "an encoder-decoder's encoder"
    if of_items:
        kind, states = "attends to states of its items", "items"
    if not use.runs_encoder_decoders:
        raise ConfigError(f"this model {kind}, which corellm runs to generate only; leave out runner")
    if config.cache.kv_cache_dtype != "auto":
        raise ConfigError(
            f"kv_cache_dtype={config.cache.kv_cache_dtype!r}: the states of {states} are not quantized; leave it out"
        )
    return AttendedStates(of_encoder)


def longest_prompt(hooks: HookCallers, max_model_len: int) -> int:
    """Return the most tokens that a prompt's items may take: a sequence's, or those an encoder reads."""
    return hooks.get_max_encoder_states() or max_model_len
