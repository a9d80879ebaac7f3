"""What the core asks of the states that a model's decoder attends to: those of an encoder, and those of items."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from corellm.errors import InvalidParameterError
from corellm.loading.attended_states import AttendedStates
from corellm.scheduling.request_part import PLAIN
from corellm_encoder_decoder.encoder_prompt import EncoderPrompt, StateBlocks
from corellm_encoder_decoder.hook_results import decoder_prompt_of, visible_states_of
from corellm_encoder_decoder.item_prompt import ItemPrompt

if TYPE_CHECKING:
    from torch import nn

    from corellm.frontend.input_processor import ProcessedPrompt
    from corellm.hookspecs import DecoderPrompt
    from corellm.loading.decoder_probe import DecoderProbe
    from corellm.multimodal.inputs import MultiModalFeature
    from corellm.plugin.hook_callers import HookCallers
    from corellm.sampling_params import SamplingParams
    from corellm.scheduling.block_pool import BlockPool
    from corellm.scheduling.request_part import RequestPart
    from corellm.worker.model_runner import ModelRunner
    from corellm.worker.parts.step_part import StepPart


class _States(AttendedStates):
    """Base of both kinds. Methods: see `AttendedStates`.

    Args:
        hooks: the model's.
    """

    def __init__(self, hooks: HookCallers) -> None:
        self._hooks = hooks

    def block_user(self, pool: BlockPool, block_size: int, *, enable_caching: bool) -> StateBlocks:
        """Return what holds the blocks of their keys and values."""
        return StateBlocks(pool, block_size, enable_caching=enable_caching)


class StatesOfEncoder(_States):
    """States that the encoder of an encoder-decoder makes of a prompt.

    Args:
        hooks: the model's.
        most: states of the encoder.
    """

    def __init__(self, hooks: HookCallers, most: int) -> None:
        super().__init__(hooks)
        self.prompt_room = self._most = most

    @property
    def probe_class(self) -> type[DecoderProbe]:
        """Class that probes the decoder."""
        from corellm_encoder_decoder.probe import CrossAttentionProbe

        return CrossAttentionProbe

    def most(self, largest_item: int) -> int:
        """Return the encoder's most states."""
        return self._most

    def embeddings_at_once(self, largest_item: int, num_slots: int) -> int:
        """Return those of the largest item."""
        return largest_item

    def part(self, runner: ModelRunner, language_model: nn.Module) -> StepPart:
        """Return what runs encoders."""
        from corellm_encoder_decoder.encoder_states import EncoderStates

        return EncoderStates(runner, language_model, self._most)

    def check_continuing(self) -> None:
        """Refuse it: the decoder begins a new output."""
        raise InvalidParameterError(
            "continue_final_message has no meaning for an encoder-decoder: its encoder reads the whole "
            "conversation, and its decoder begins a new output; leave it out",
            param="continue_final_message",
        )

    def check_params(self, params: SamplingParams) -> None:
        """Refuse parameters that have no meaning where an encoder reads the prompt."""
        if params.truncate_prompt_tokens is not None:
            raise InvalidParameterError(
                "truncate_prompt_tokens: the encoder of an encoder-decoder reads whole prompts only; shorten the "
                "prompt",
                param="truncate_prompt_tokens",
            )
        if params.prompt_logprobs is not None:
            raise InvalidParameterError(
                "prompt_logprobs: the prompt of an encoder-decoder is read by its encoder, which gives tokens no "
                "probability; leave it out",
                param="prompt_logprobs",
            )

    def decoder_prompt(
        self,
        token_ids: list[int],
        features: Sequence[MultiModalFeature],
        known: Callable[[list[int]], list[int]],
    ) -> DecoderPrompt:
        """Return what the decoder starts from, and how many states its encoder makes of the prompt."""
        return decoder_prompt_of(self._hooks, token_ids, features, self._most, known)

    def part_of(self, prompt: ProcessedPrompt) -> RequestPart:
        """Return the prompt of the encoder."""
        decoder = prompt.decoder
        assert decoder is not None
        num_states = len(prompt.token_ids) if decoder.num_states is None else decoder.num_states
        opening = decoder.choices, decoder.not_first
        return EncoderPrompt.of(prompt.token_ids, num_states, prompt.features, prompt.cache_salt, opening)


class StatesOfItems(_States):
    """States that items become, beside the decoder's prompt."""

    @property
    def probe_class(self) -> type[DecoderProbe]:
        """Class that probes the decoder."""
        from corellm_encoder_decoder.probe import ItemStatesProbe

        return ItemStatesProbe

    def most(self, largest_item: int) -> int:
        """Return those of the largest item."""
        return largest_item

    def embeddings_at_once(self, largest_item: int, num_slots: int) -> int:
        """Return as many as there are slots: the states of a request's items are written in one step."""
        return num_slots

    def part(self, runner: ModelRunner, language_model: nn.Module) -> StepPart:
        """Return what gives the decoder the states of items."""
        from corellm_encoder_decoder.item_states import ItemStates

        return ItemStates(runner, language_model)

    def part_of(self, prompt: ProcessedPrompt) -> RequestPart:
        """Return which states tokens see; text alone has no part."""
        if not prompt.features:
            return PLAIN
        visible = visible_states_of(self._hooks, prompt.token_ids, prompt.features)
        return ItemPrompt.of_items(prompt.features, visible, prompt.cache_salt)
