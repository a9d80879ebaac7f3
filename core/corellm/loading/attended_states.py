"""States that a decoder attends to beside its own tokens: how it is probed, and what runs and holds them.

They are what the encoder of an encoder-decoder makes of the prompt, or a prompt's items. Most models have none, and
import nothing of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from corellm.config import EngineConfig
from corellm.errors import ConfigError, ContractError
from corellm.plugin.hook_callers import HookCallers, adapter_implements

if TYPE_CHECKING:
    from torch import nn

    from corellm.loading.decoder_probe import DecoderProbe
    from corellm.loading.model_use import ModelUse
    from corellm.scheduling.block_pool import BlockPool
    from corellm.scheduling.block_user import BlockUser
    from corellm.worker.model_runner import ModelRunner
    from corellm.worker.parts.step_part import StepPart


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
