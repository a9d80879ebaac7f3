"""Refuses requests that can never run, before they wait: with a reason, both numbers and the way out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from corellm.errors import MultiModalError, PromptError, PromptTooLongError, RequestError
from corellm.multimodal.inputs import MultiModalFeature
from corellm.scheduling.request import Request


@dataclass(frozen=True, kw_only=True)
class AdmissionLimits:
    """What every request must fit into."""

    max_model_len: int
    kv_capacity: int
    """Tokens that the KV cache holds."""
    encoder_capacity: int
    """Embeddings that encoders compute in a step: the cache holds as many or more."""
    max_prompt_step: int | None
    """Without chunked prefill: tokens of one step, which must hold a whole prompt."""
    block_size: int = 1
    """Tokens per block of the KV cache."""
    longest_whole: int | None = None
    """Most tokens that must be computed in one step, for which memory was planned; None for any number."""

    @property
    def max_total_tokens(self) -> int:
        """Longest sequence, prompt and output together."""
        return min(self.max_model_len, self.kv_capacity)

    def refusal(self, request: Request) -> RequestError | None:
        """The error for a request that can never run; None if it can."""
        most = self.max_total_tokens - (request.prompt_task is None)
        if not 0 < request.num_prompt_tokens <= min(most, self.max_prompt_step or most):
            return self._prompt_refusal(request)
        of_items = self._item_refusal(request) if request.features else None
        return of_items or request.part.refusal(request, self)

    def _prompt_refusal(self, request: Request) -> PromptError:
        """Return the error for a prompt without tokens, or with too many."""
        length = request.num_prompt_tokens
        of_items = sum(feature.placeholder.length for feature in request.features if request.part.items_in_prompt)
        told = f"the prompt has {length} tokens" + (f", {of_items} of them for its items" if of_items else "")
        shorter = "send fewer or smaller items" if 2 * of_items > length else "shorten the prompt"
        if length == 0:
            return PromptError("the prompt has no tokens; give it at least one")
        output, misfit = (1, "leaves no room to generate") if request.prompt_task is None else (0, "does not fit")
        if length + output > self.max_model_len:
            return PromptTooLongError(
                f"{told}, which {misfit} within max_model_len={self.max_model_len}; {shorter}, or "
                f"raise max_model_len if the model was trained for more"
            )
        if length + output > self.kv_capacity:
            return PromptTooLongError(
                f"{told}, which {misfit} within the KV cache of {self.kv_capacity} tokens; "
                f"{shorter}, or raise num_kv_blocks or kv_cache_memory"
            )
        return PromptTooLongError(
            f"{told}, but without chunked prefill a step takes max_num_batched_tokens={self.max_prompt_step}; "
            f"{shorter}, raise that, or set enable_chunked_prefill=True"
        )

    def _item_refusal(self, request: Request) -> RequestError | None:
        for feature in request.features:
            num_embeds = feature.placeholder.num_embeds
            if num_embeds > self.encoder_capacity:
                counted = ", and the adapter counted on none larger (get_dummy_mm_data or get_mm_max_tokens_per_item)"
                planned = "" if feature.precomputed else counted  # the cache holds the largest that is counted on
                return MultiModalError(
                    f"{feature.modality} {feature.item} has {num_embeds} embeddings, but the encoder cache holds "
                    f"{self.encoder_capacity}{planned}; make the {feature.modality} smaller or raise "
                    "encoder_cache_size",
                    modality=feature.modality,
                    item=feature.item,
                    expected=self.encoder_capacity,
                    got=num_embeds,
                )
        together = embeds_of(request.features)
        if self.max_prompt_step is not None and together > self.encoder_capacity:
            return PromptTooLongError(
                f"the items have {together} embeddings together, but without chunked prefill "
                f"the encoder cache must hold all of them and holds {self.encoder_capacity}; send fewer items, raise "
                "encoder_cache_size, or set enable_chunked_prefill=True"
            )
        return None


def embeds_of(features: Iterable[MultiModalFeature]) -> int:
    """Return the embeddings of different items."""
    return sum({feature.identifier: feature.placeholder.num_embeds for feature in features}.values())
