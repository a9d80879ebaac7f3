"""What Kosmos-2 and Kosmos-2.5 do alike: an image's block behind BOS, latent queries, conversations without roles.

Knows where the block goes and what is in it; knows neither how an image is processed nor how the decoder runs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from copy import deepcopy
from functools import cached_property
from typing import TYPE_CHECKING, Any

from corellm.errors import AlreadyExpandedError, ProcessorKwargsError
from corellm.hookspecs import ChatPrompt, ModelContext, hookimpl
from corellm.multimodal import PromptIndexTargets, PromptInsertion, PromptUpdateDetails, collect_media

if TYPE_CHECKING:
    from corellm.multimodal import MultiModalItems


class Kosmos(ABC):
    """The shared part of the adapters."""

    contract = 1
    supported_mm_limits = {"image": 1}
    placeholders = {"image": ""}
    processor: str
    """Transformers' name of it, for messages."""
    refused: Mapping[str, str]
    """`{argument of the processor's that a request cannot give: what to do instead}`."""

    def __init__(self, context: ModelContext) -> None:
        self.context = context

    def _refuse(self, mm_kwargs: Mapping[str, Any]) -> None:
        """Refuse arguments by name.

        Raises:
            ProcessorKwargsError: says what to do instead.
        """
        for name in mm_kwargs.keys() & self.refused.keys():
            raise ProcessorKwargsError(f"mm_processor_kwargs: {name}: {self.refused[name]}", got=mm_kwargs[name])

    # --- the prompt -------------------------------------------------------------------------------------------------

    @hookimpl
    def make_context(self, messages: Sequence[Mapping[str, Any]], chat_template: str | None) -> ChatPrompt | None:
        """Without a template the texts of all messages, each on a line; the image goes before them.

        It was trained on single texts, without any mark of a role.
        """
        if chat_template:
            return None
        texts = ("".join(part["text"] for part in m["content"] if part["type"] == "text").strip() for m in messages)
        return ChatPrompt("\n".join(filter(None, texts)), collect_media(messages))

    def _behind_bos(self, token_ids: Sequence[int]) -> list[int]:
        """A prompt's tokens but for BOS, with which it may begin.

        Raises:
            AlreadyExpandedError: transformers' processor wrote its image.
        """
        text = list(token_ids[list(token_ids[:1]) == [self.context.tokenizer.bos_token_id] :])
        begin, _, end = self._image_tokens
        block = [begin, *self._written_places(), end]
        if text[: len(block)] == block:
            raise AlreadyExpandedError(
                f"the prompt has the {len(block)} tokens that {self.processor} writes for an image; give the prompt "
                "without them, as text or token ids, and the image beside it",
                modality="image",
                item=0,
            )
        return text

    @hookimpl
    def get_prompt_updates(self, mm_items: MultiModalItems) -> list[PromptInsertion]:
        """The image's block behind BOS. The padding token takes the embeddings, as it belongs to no text.

        Transformers' processor writes ordinary tokens there, of words or BOS, and marks the places apart.
        """
        begin, place, end = self._image_tokens

        def block(index: int) -> PromptUpdateDetails:
            count = mm_items["image"].num_embeddings(index) or self.context.hf_config.latent_query_num
            return PromptUpdateDetails.select_token_id([begin, *[place] * count, end], place)

        behind_bos = PromptIndexTargets.prefix([self.context.tokenizer.bos_token_id])
        return [PromptInsertion("image", behind_bos, block)]

    @cached_property
    def _image_tokens(self) -> tuple[int, int, int]:
        """The tokens before, at and behind an image's embeddings."""
        tokenizer = self.context.tokenizer
        begin, end = tokenizer.convert_tokens_to_ids(self._marks())
        return begin, tokenizer.pad_token_id, end

    @abstractmethod
    def _marks(self) -> list[str]:
        """The tokens before and behind an image's embeddings.

        Raises:
            CheckpointError: the tokenizer lacks them.
        """

    @abstractmethod
    def _written_places(self) -> Sequence[int]:
        """The tokens that transformers' processor writes where an image's embeddings go."""

    # --- the model --------------------------------------------------------------------------------------------------

    @hookimpl(wrapper=True)
    def load_model(self) -> Generator[None, Any, Any]:
        """Give the latent queries attention of their own: to all patches, and not by the text decoder's configuration.

        Up to transformers 5.22 they would see no patch behind them.

        Raises:
            CheckpointError: the tokenizer lacks the tokens around an image.
        """
        self._marks()
        model = yield
        attention = model.image_to_text_projection.x_attn
        attention.config = deepcopy(attention.config)
        attention.config._attn_implementation = model.config._attn_implementation
        attention.is_causal = False
        return model
