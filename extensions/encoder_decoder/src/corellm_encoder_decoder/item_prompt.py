"""Items whose embeddings are states, to which a decoder attends across beside its own tokens, in the scheduler.

The prompt is the decoder's. What `encoder_prompt` does for an encoder's states holds for these: blocks of their own,
written in one step, all items at once. They depend on the items alone: prompts with equal items share them. Knows
neither tensors nor queues.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from corellm.errors import PromptTooLongError
from corellm.multimodal.inputs import MultiModalFeature
from corellm.scheduling.admission import AdmissionLimits
from corellm.scheduling.batch import ItemSlice, item_slices
from corellm.scheduling.request import Request
from corellm.scheduling.request_part import RequestPart
from corellm_encoder_decoder.encoder_prompt import EncoderPrompt, digest_of

VisibleStates = tuple[int, int, int]
"""`(token, start, end)`: from that token on, tokens of a prompt see the states `start` up to `end`."""


@dataclass(slots=True)
class ItemPrompt(EncoderPrompt):
    """The states of a request's items. No encoder reads tokens; `token_ids` is empty."""

    visible: Sequence[VisibleStates] = ()
    """Which states tokens see, by token; those before the first see none."""

    @classmethod
    def of_items(
        cls, features: Sequence[MultiModalFeature], visible: Sequence[VisibleStates], cache_salt: str | None
    ) -> Self:
        """Return the states of these items, in this order."""
        num_states = sum(feature.placeholder.num_embeds for feature in features)
        digest = digest_of(num_states, cache_salt, (feature.identifier.encode() for feature in features))
        return cls((), num_states, digest, visible=visible)

    def stated_tokens(self, request: Request) -> Sequence[int]:
        """Return the request's own tokens."""
        return RequestPart.stated_tokens(self, request)

    def for_worker(self) -> Mapping[str, Any]:
        """Return which states tokens see."""
        return {"visible_states": self.visible}

    def counts(self, request: Request) -> tuple[int, int]:
        """Return the request's own tokens, and how many of them were cached."""
        return RequestPart.counts(self, request)

    def items_needed(self, request: Request, start: int, stop: int) -> Iterator[ItemSlice]:
        """Yield all states of each item, until they are written."""
        return item_slices(request.features, 0, 0 if self.is_encoded else request.num_prompt_tokens)

    def refusal(self, request: Request, limits: AdmissionLimits) -> PromptTooLongError | None:
        """Return the error where states and tokens do not fit together."""
        if request.num_prompt_tokens + 1 > limits.kv_capacity - self.num_slots(limits.block_size):
            return PromptTooLongError(
                f"the items have {self.num_states} states: with the prompt's {request.num_prompt_tokens} tokens, and "
                f"one to generate, they do not fit within the KV cache of {limits.kv_capacity} tokens; send fewer "
                f"items, or raise num_kv_blocks or kv_cache_memory"
            )
        return None
