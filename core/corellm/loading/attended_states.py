"""States that a decoder attends to beside its own tokens: what an extension says and does of them for a model.

They are what the encoder of an encoder-decoder makes of a prompt, or a prompt's items. Most models have none. Knows
which models have some, and what to install for them; imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from corellm.errors import ConfigError, MissingExtraError, install_hint
from corellm.plugin.extensions import call_extensions
from corellm.plugin.hook_callers import HookCallers, adapter_implements

if TYPE_CHECKING:
    from torch import nn

    from corellm.config import EngineConfig
    from corellm.frontend.input_processor import ProcessedPrompt
    from corellm.hookspecs import DecoderPrompt, ModelContext
    from corellm.loading.decoder_probe import DecoderProbe
    from corellm.loading.model_use import ModelUse
    from corellm.multimodal.inputs import MultiModalFeature
    from corellm.sampling_params import SamplingParams
    from corellm.scheduling.block_pool import BlockPool
    from corellm.scheduling.block_user import BlockUser
    from corellm.scheduling.request_part import RequestPart
    from corellm.worker.model_runner import ModelRunner
    from corellm.worker.parts.step_part import StepPart


class AttendedStates:
    """States that a model's decoder attends to: the base of each kind. Methods are in the order of their calls."""

    prompt_room: int | None = None
    """Most tokens of a prompt that has an encoder of its own; None where prompts are the decoder's."""

    @property
    def probe_class(self) -> type[DecoderProbe]:
        """Class that probes the decoder."""
        raise NotImplementedError

    def most(self, largest_item: int) -> int:
        """Return the most states of a sequence, which lie in the KV cache, given the embeddings of the largest item."""
        raise NotImplementedError

    def embeddings_at_once(self, largest_item: int, num_slots: int) -> int:
        """Return how many embeddings of items a step must be able to make, given the slots of the KV cache."""
        raise NotImplementedError

    def part(self, runner: ModelRunner, language_model: nn.Module) -> StepPart:
        """Return what makes the states in a step."""
        raise NotImplementedError

    def block_user(self, pool: BlockPool, block_size: int, *, enable_caching: bool) -> BlockUser:
        """Return what holds the blocks of their keys and values."""
        raise NotImplementedError

    def check_continuing(self) -> None:
        """Refuse to continue a conversation's last message, if that cannot be.

        Raises:
            InvalidParameterError: says why.
        """

    def check_params(self, params: SamplingParams) -> None:
        """Refuse parameters that have no meaning for the model.

        Raises:
            InvalidParameterError: names the parameter.
        """

    def decoder_prompt(
        self,
        token_ids: list[int],
        features: Sequence[MultiModalFeature],
        known: Callable[[list[int]], list[int]],
    ) -> DecoderPrompt | None:
        """Return what the decoder starts from; None where that is the prompt.

        Args:
            token_ids: of the prompt, placeholders expanded.
            features: its items.
            known: returns token ids that the model knows, and refuses others.

        Raises:
            ContractError, ProcessingError: the adapter is at fault.
            PromptTooLongError: the prompt has more tokens than its encoder takes.
        """
        return None

    def part_of(self, prompt: ProcessedPrompt) -> RequestPart:
        """Return the part of a request with a prompt.

        Raises:
            ContractError, ProcessingError: the adapter is at fault.
        """
        raise NotImplementedError


class StatesOffer(Protocol):
    """What `offer_attended_states` returns for an opened model; its methods that are hooks are the hooks' defaults."""

    def of_model(self, config: EngineConfig, hooks: HookCallers) -> AttendedStates | None:
        """Return the states of the model; None for one whose decoder attends to its own tokens alone.

        Raises:
            ConfigError: it cannot be run as configured.
            ContractError: the adapter says different things of them.
        """
        ...


def states_offer(context: ModelContext, use: ModelUse) -> StatesOffer | None:
    """Return what an extension offers, if one is installed and the model is run to generate text."""
    if "generate" not in use.tasks:
        return None
    return next((offer for _, offer in call_extensions("offer_attended_states", _is_offer, context=context)), None)


def check_offered(context: ModelContext, hooks: HookCallers, use: ModelUse) -> None:
    """Refuse a model whose decoder attends to states, as nothing runs it.

    Raises:
        ConfigError: no use but generating text has any.
        MissingExtraError: no extension offers it.
    """
    if adapter_implements(hooks.get_visible_states):
        kind = "attends to states of its items"
    elif context.hf_config.is_encoder_decoder or hooks.get_max_encoder_states() is not None:
        kind = "is an encoder-decoder"
    else:
        return
    if "generate" not in use.tasks:
        raise ConfigError(f"this model {kind}, which corellm runs to generate only; leave out runner")
    raise MissingExtraError(f"this model {kind}, which needs {install_hint('encoder_decoder')}")


def _is_offer(result: Any) -> bool:
    return callable(getattr(result, "of_model", None))
