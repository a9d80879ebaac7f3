"""Encoder-decoders of transformers whose encoder reads one item: speech to text, images to text.

An item becomes as many states as the model's own forward pass gives its decoder. The prompt's text is the decoder's: it
continues what transformers' `generate` begins with. What the processor makes of items is in `items`, what is known of a
model without its weights in `outline`, its forward pass in `reading`, what must hold at load in `checks`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from corellm.errors import CorellmError, MediaError, ProcessorKwargsError, PromptError
from corellm.hookspecs import ChatPrompt, DecoderPrompt, ModelContext, SpeechForm, hookimpl
from corellm.multimodal import (
    MultiModalFeature,
    MultiModalFieldConfig,
    MultiModalKwargsItem,
    PromptIndexTargets,
    PromptInsertion,
    check_processor_kwargs,
    check_sizes,
    collect_media,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

    from corellm_transformers.encoder_decoders.checks import Reader
    from corellm_transformers.encoder_decoders.items import Items
    from corellm_transformers.encoder_decoders.outline import Outline
    from corellm_transformers.encoder_decoders.prompts import Prompts
    from corellm_transformers.encoder_decoders.windows import Spectrograms


class EncoderDecoder:
    """A model whose encoder reads one item, and whose decoder writes text."""

    contract = 1
    refuse_embeddings = "an item's states are made from its media; serve the checkpoint by a plugin of its own for that"

    def __init__(self, context: ModelContext) -> None:
        self.context = context

    @cached_property
    def _items(self) -> Items:
        """What the processor makes of items."""
        from corellm_transformers.encoder_decoders.items import Items

        return Items(self.context)

    @cached_property
    def _outline(self) -> Outline:
        """The model without weights; made on first use."""
        from corellm_transformers.encoder_decoders.outline import Outline

        return Outline(self.context)

    @cached_property
    def _prompts(self) -> Prompts:
        """What the decoder begins with; found on first use, by `generate` without weights."""
        from corellm_transformers.encoder_decoders.prompts import Prompts

        return Prompts(self.context, self._outline, self._items.process(self._items.small(), {}))

    @cached_property
    def _reader(self) -> Reader:
        """The loaded model; made by `get_language_model`."""
        raise AssertionError("the model is not loaded")

    @cached_property
    def _largest(self) -> tuple[int, Any]:
        """The most states that an item becomes, of those that are tried, and that item."""
        found = [(self._num_states(item), -i, item) for i, item in enumerate(self._items.larger())]
        most, _, item = max(found, key=lambda one: one[:2])
        return most, item

    def _num_states(self, item: Any) -> int:
        """Return those of an item of the same shapes of which nothing is masked: another ratio may fill its patches."""
        tensors = self._items.process(item, self.context.kwargs_for(self._items.modality))
        return self._outline.states({name: value for name, value in tensors.items() if "mask" not in name})[0]

    # --- the processor ----------------------------------------------------------------------------------------------

    @hookimpl
    def register_processor(self) -> Callable[..., Any]:
        """Return the checkpoint's processor, without torchvision where that is not installed."""
        from corellm_transformers.processors import read_processor

        return read_processor

    @hookimpl
    def get_supported_mm_limits(self) -> Mapping[str, int | None]:
        """One item, which the encoder reads."""
        return {self._items.modality: 1}

    @hookimpl
    def get_placeholder_str(self, modality: str) -> str | None:
        """Nothing stands for the item: it is the encoder's, and the text the decoder's."""
        return "" if modality == self._items.modality else None

    @hookimpl
    def get_max_encoder_states(self) -> int:
        """The states of the largest item that is tried: an image of 1024 pixels a side, or a minute of audio."""
        return self._largest[0]

    @hookimpl
    def get_mm_max_tokens_per_item(self) -> Mapping[str, int]:
        """The same: of a ratio that fills its patches, an item becomes as many, where the dummy does not."""
        return {self._items.modality: self._largest[0]}

    @hookimpl
    def get_dummy_mm_data(self, mm_counts: Mapping[str, int]) -> Mapping[str, Any]:
        """The largest item."""
        return {self._items.modality: [self._largest[1]] * mm_counts.get(self._items.modality, 0)}

    @hookimpl
    def call_hf_processor(
        self, mm_data: Mapping[str, Sequence[Any]], mm_kwargs: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """The processor's tensors for the item, each as a list of one.

        Raises:
            ProcessorKwargsError: an argument is unknown, larger than planned for, or does not fit this item.
            MediaError: the processor refuses the item, or would cut it.
        """
        ((modality, (item,)),) = mm_data.items()
        if (window := mm_kwargs.get("window")) is not None and self._spectrograms is not None:
            return {name: [value] for name, value in self._spectrograms.window(item, window).items()}
        check_processor_kwargs(self.context.hf_processor, mm_kwargs)
        check_sizes(self.context.hf_processor, modality, self.context.kwargs_for(modality), mm_kwargs)
        try:
            tensors = self._items.process(item, mm_kwargs)
            self._outline.states(tensors)
        except CorellmError:
            raise
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            if mm_kwargs:
                raise ProcessorKwargsError(
                    f"mm_processor_kwargs: {dict(mm_kwargs)} does not fit this {modality} ({reason})",
                    got=dict(mm_kwargs),
                ) from error
            raise MediaError(
                f"the model does not take this {modality} ({reason}); send another size or length"
            ) from error
        return {name: [value] for name, value in tensors.items()}

    @hookimpl
    def get_mm_fields_config(self, hf_inputs: Mapping[str, Any]) -> Mapping[str, MultiModalFieldConfig]:
        """Tensors are an item's whole, with the processor's dimension of items."""
        return {name: MultiModalFieldConfig.batched(self._items.modality) for name in hf_inputs}

    @hookimpl
    def apply_hf_processor_tokens_only(self, token_ids: list[int], mm_counts: Mapping[str, int]) -> list[int]:
        """The text's tokens, without what the tokenizer puts around texts.

        Raises:
            PromptError: there is no item for the encoder to read.
        """
        if not mm_counts:
            raise PromptError(f"the model reads one {self._items.modality}; give one, with or without text")
        return self._prompts.bare(token_ids)

    @hookimpl
    def get_prompt_updates(self, out_mm_kwargs: Mapping[str, Sequence[MultiModalKwargsItem]]) -> list[PromptInsertion]:
        """A token for each state, before the text."""
        modality, token = self._items.modality, self._prompts.stand_in

        def insertion(index: int) -> list[int]:
            tensors = {name: value.data for name, value in out_mm_kwargs[modality][index].items()}
            return [token] * self._outline.states(tensors)[0]

        return [PromptInsertion(modality, PromptIndexTargets.start(), insertion)]

    @hookimpl
    def get_decoder_prompt(self, token_ids: Sequence[int], mm_features: Sequence[MultiModalFeature]) -> DecoderPrompt:
        """What `generate` begins with, and the text behind it."""
        (item,) = mm_features
        text = token_ids[item.placeholder.end :]
        return self._prompts.of(text, item.placeholder.num_embeds)

    @hookimpl
    def make_context(self, messages: Sequence[Mapping[str, Any]], chat_template: str | None) -> ChatPrompt | None:
        """The conversation's texts, each on a line, as the beginning of the output: the model knows no turns."""
        if chat_template:
            return None
        texts = ("".join(part["text"] for part in m["content"] if part["type"] == "text").strip() for m in messages)
        return ChatPrompt("\n".join(filter(None, texts)), collect_media(messages))

    @hookimpl
    def get_transcription_prompt(self, language: str | None, translate: bool, context: str) -> Sequence[int] | None:
        """What `generate` begins with where it is told these."""
        return self._prompts.transcription(language, translate, context)

    @cached_property
    def _spectrograms(self) -> Spectrograms | None:
        """What the feature extractor makes of windows of long audio; None if it has none."""
        from corellm_transformers.encoder_decoders.speech import spectrograms_of

        return spectrograms_of(self._items)

    @hookimpl
    def get_speech_form(self) -> SpeechForm | None:
        """The longest audio that the feature extractor takes, and the tokens of times that `generate` knows."""
        from corellm_transformers.encoder_decoders.speech import form_of

        return form_of(self._items, self._spectrograms, self._outline, self._prompts)

    # --- the model --------------------------------------------------------------------------------------------------

    @hookimpl
    def get_language_model(self, model: nn.Module) -> nn.Module:
        """Return the decoder, after the model's own forward pass was compared with what the engine will do.

        A model without values, on the meta device, cannot be compared: it is asked for its decoder alone.
        """
        from corellm.modelling import text_decoder
        from corellm_transformers.encoder_decoders.checks import Reader

        decoder: nn.Module = text_decoder(model, self.context.hf_config)
        if not next(model.parameters()).is_meta:
            self._reader = Reader(model, decoder, self._items, self._outline)
        return decoder

    @hookimpl
    def get_multimodal_embeddings(self, mm_kwargs: Mapping[str, Any]) -> list[Tensor]:
        """The states that the forward pass gives the decoder, one item at a time."""
        count = len(next(iter(mm_kwargs.values())))
        return [self._reader.states({name: values[i] for name, values in mm_kwargs.items()}) for i in range(count)]

    @hookimpl
    def get_encoder_states(self, inputs_embeds: Tensor, is_multimodal: Tensor) -> Tensor:
        """The item's embeddings are the states."""
        return inputs_embeds[is_multimodal]

    @hookimpl
    def get_input_embeddings(self, input_ids: Tensor) -> Tensor:
        """Embed the decoder's tokens as it does itself."""
        return self._reader.text(input_ids)

    @hookimpl
    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        """Return the logits; those of tokens that `generate` suppresses are as low as they can be.

        They are no minus infinity: a choice of the output's first tokens may leave nothing else.
        """
        import torch

        logits = self._reader.logits(hidden_states)
        suppressed = self._prompts.suppressed(logits.device)
        return logits if suppressed is None else logits.index_fill(-1, suppressed, torch.finfo(logits.dtype).min)
