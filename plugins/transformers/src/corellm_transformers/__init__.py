"""Any multimodal model of transformers, without a plugin of its own: a fallback for what no distribution claims.

An item becomes the tokens that the Hugging Face processor puts in its place, and the embeddings that the model's own
forward pass merges there. What that does not hold for is refused at load, in `checks`. How processors are read is in
`processors`, what they put into prompts in `placeholders`, what a model gives its decoder in `forward`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from corellm.errors import CorellmError, MediaError, ProcessorKwargsError
from corellm.hookspecs import ModelContext, SpeechForm, hookimpl
from corellm.multimodal import (
    MultiModalFeature,
    MultiModalFieldConfig,
    MultiModalKwargsItem,
    PromptReplacement,
    PromptUpdateDetails,
    check_processor_kwargs,
    check_sizes,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

    from corellm.multimodal import MultiModalItems
    from corellm_transformers.family import Family
    from corellm_transformers.forward import Forward

__all__ = ["TransformersModel"]

_SOUND = ("load_audio_from_video", "use_audio_in_video")
"""Arguments by which processors read the sound inside a video's file."""


class TransformersModel:
    """A multimodal language model of transformers."""

    contract = 1
    refuse_embeddings = "an item's tokens are made from its media; serve the checkpoint by a plugin of its own for that"

    def __new__(cls, context: ModelContext) -> Any:
        """Return the adapter, which is another one for an encoder-decoder."""
        if not context.hf_config.is_encoder_decoder:
            return super().__new__(cls)
        from corellm_transformers.encoder_decoders import EncoderDecoder

        return EncoderDecoder(context)

    def __init__(self, context: ModelContext) -> None:
        from corellm_transformers.indexers import limit_positions

        self.context = context
        limit_positions(context.hf_config)
        self._compute_logits: Callable[[nn.Module, Tensor], Tensor] | None = None

    @cached_property
    def _family(self) -> Family:
        """What the processor says of its modalities; found on first use, by processing small items."""
        from corellm_transformers.family import Family

        return Family(self.context)

    @cached_property
    def _forward(self) -> Forward:
        """The loaded model's forward pass up to its decoder; made by `get_language_model`."""
        raise AssertionError("the model is not loaded")

    @staticmethod
    @hookimpl
    def register_config() -> Callable[..., Any]:
        """Return transformers' configurations, with an error for a type of model that it does not have."""
        from corellm_transformers.configurations import read_config

        return read_config

    @staticmethod
    @hookimpl
    def register_tokenizer() -> Callable[..., Any]:
        """Return transformers' tokenizers, which begin no text with a token where the processor does not."""
        from corellm_transformers.processors import read_tokenizer

        return read_tokenizer

    # --- the processor ----------------------------------------------------------------------------------------------

    @hookimpl
    def register_processor(self) -> Callable[..., Any]:
        """Return the checkpoint's processor, without its video processor where that needs torchvision."""
        from corellm_transformers.processors import read_processor

        return read_processor

    @hookimpl
    def get_supported_mm_limits(self) -> Mapping[str, int | None]:
        """Every modality for which the processor has a part and a placeholder."""
        return {modality: known.limit for modality, known in self._family.modalities.items()}

    @hookimpl
    def get_placeholder_str(self, modality: str) -> str | None:
        """The text that the processor replaces by an item's tokens."""
        known = self._family.modalities.get(modality)
        return None if known is None else known.text

    @hookimpl
    def get_dummy_mm_data(
        self, seq_len: int, mm_counts: Mapping[str, int], mm_options: Mapping[str, Mapping[str, int]]
    ) -> Mapping[str, Any]:
        """Items of the size that becomes the most tokens, of those that fit a prompt."""
        return self._family.largest(seq_len, mm_counts, mm_options)

    @hookimpl
    def get_mm_max_tokens_per_item(self, seq_len: int) -> Mapping[str, int]:
        """A video may fill a prompt, where the dummy does not."""
        return {modality: seq_len for modality in self._family.modalities if modality == "video"}

    @hookimpl
    def call_hf_processor(
        self, mm_data: Mapping[str, Sequence[Any]], mm_kwargs: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """The processor's tensors for the one item, and its tokens; each as a list of one.

        Raises:
            ProcessorKwargsError: an argument is unknown, larger than planned for, or does not fit this item.
            MediaError: the processor refuses the item.
        """
        ((modality, (item,)),) = mm_data.items()
        check_processor_kwargs(self.context.hf_processor, mm_kwargs)
        if sound := sorted(name for name in _SOUND if mm_kwargs.get(name)):
            raise ProcessorKwargsError(
                f"mm_processor_kwargs: {sound[0]} is not supported, as a video's item is its frames; leave it out, and "
                "send the sound as an audio item beside the video",
                got=dict(mm_kwargs),
            )
        check_sizes(self.context.hf_processor, modality, self.context.kwargs_for(modality), mm_kwargs)
        try:
            tensors, tokens = self._family.process(modality, item, mm_kwargs)
        except Exception as error:
            if isinstance(error, ValueError) and not isinstance(error, CorellmError) and not mm_kwargs:
                reason = " ".join(str(error).split())[:200]
                raise MediaError(
                    f"the model's processor refuses this {modality} ({reason}); send another size or length"
                ) from error
            if isinstance(error, CorellmError) or not mm_kwargs:
                raise
            raise ProcessorKwargsError(
                f"mm_processor_kwargs: {dict(mm_kwargs)} does not fit this {modality}",
                got=dict(mm_kwargs),
            ) from error
        tokens_name = self._family.modalities[modality].tokens_name
        return {name: [value] for name, value in {**tensors, tokens_name: tokens}.items()}

    @hookimpl
    def get_mm_fields_config(self, hf_inputs: Mapping[str, Any]) -> Mapping[str, MultiModalFieldConfig]:
        """Tensors are an item's whole, with the processor's dimension of items."""
        modality_of = self._family.modalities_of(hf_inputs)
        return {name: MultiModalFieldConfig.batched(modality_of[name]) for name in hf_inputs}

    @hookimpl
    def apply_hf_processor_tokens_only(self, token_ids: list[int]) -> list[int]:
        """Put around a prompt what the processor does."""
        return self._family.with_ends(token_ids)

    @hookimpl
    def get_prompt_updates(
        self, mm_items: MultiModalItems, out_mm_kwargs: Mapping[str, Sequence[MultiModalKwargsItem]]
    ) -> list[PromptReplacement]:
        """A placeholder becomes the tokens that the processor put in its place.

        Raises:
            UnsupportedModalityError: the model embeds items of one modality otherwise beside those of another.
        """
        self._family.check_together([modality for modality, items in mm_items.items() if items])

        def update(modality: str) -> PromptReplacement:
            known = self._family.modalities[modality]

            def replacement(index: int) -> PromptUpdateDetails:
                tokens = out_mm_kwargs[modality][index][known.tokens_name].data
                return PromptUpdateDetails.select_token_ids(tokens.tolist(), known.embed_token_ids)

            return PromptReplacement(modality, target=known.target, replacement=replacement)

        return [update(modality) for modality in self._family.modalities]

    @hookimpl
    def get_bidirectional_spans(
        self, token_ids: Sequence[int], mm_features: Sequence[MultiModalFeature]
    ) -> Sequence[tuple[int, int]] | None:
        """What the model's masks showed at load: nothing, the rows of items, or the whole prompt."""
        spans = self._forward.spans
        return None if spans is None else spans.of(token_ids, mm_features)

    @hookimpl
    def get_speech_form(self) -> SpeechForm | None:
        """The longest audio of which the processor leaves nothing out; None where it takes any."""
        from corellm_transformers.long_audio import speech_form

        return speech_form(self._family)

    # --- the model --------------------------------------------------------------------------------------------------

    @hookimpl
    def load_model(self) -> None:
        """Refuse before weights are read what the core's default would load and run wrong.

        Raises:
            CheckpointError: its answers about audio need a LoRA adapter.
        """
        from corellm_transformers.family import needs_plugin

        config = self.context.hf_config
        what = f"{self.context.model_path}: {config.model_type!r}"
        if getattr(config, "has_lora_adapter", False):
            raise needs_plugin(f"{what} answers about audio with a LoRA adapter, which corellm does not apply", None)

    @hookimpl
    def get_language_model(self, model: nn.Module) -> nn.Module:
        """Return the decoder, after the model's own forward pass was compared with what the engine will do.

        A model without values, on the meta device, cannot be compared: it is asked for its decoder alone.
        """
        from corellm_transformers.checks import check_model
        from corellm_transformers.distance_biases import give_tables
        from corellm_transformers.forward import Forward
        from corellm_transformers.indexers import attend_to_all

        decoder: nn.Module = model.get_decoder()  # type: ignore[operator]
        if next(model.parameters()).is_meta:
            return decoder
        attend_to_all(decoder)
        give_tables(decoder)
        self._forward = Forward(model, decoder, self._family)
        check_model(self._forward)
        return decoder

    @hookimpl
    def get_multimodal_embeddings(self, modality: str, mm_kwargs: Mapping[str, Any]) -> list[Tensor]:
        """The rows that the forward pass puts in the places of an item's tokens, one item at a time."""
        names = self._family.modalities[modality].tokens_name
        return [
            self._forward.embed(
                modality, tokens, {name: values[i] for name, values in mm_kwargs.items() if name != names}
            )
            for i, tokens in enumerate(mm_kwargs[names])
        ]

    @hookimpl
    def get_input_embeddings(self, input_ids: Tensor) -> Tensor:
        """Embed text as the model's own forward pass does, also the tokens of items that it generates."""
        return self._forward.text(input_ids)

    @hookimpl
    def merge_multimodal_embeddings(
        self, inputs_embeds: Tensor, multimodal_embeddings: Tensor, is_multimodal: Tensor
    ) -> tuple[Tensor, Mapping[str, Any]]:
        """Write embeddings in their places; what the decoder's first layers add to them are further arguments."""
        return self._forward.merged(inputs_embeds, multimodal_embeddings, is_multimodal)

    @hookimpl
    def get_rope_positions(
        self, token_ids: Sequence[int], mm_features: Sequence[MultiModalFeature]
    ) -> tuple[Tensor, int] | None:
        """Positions of the model's own `get_rope_index`, where its decoder is given them."""
        return self._forward.positions(token_ids, self._forward.data_of(mm_features))

    @hookimpl
    def compute_logits(self, model: nn.Module, hidden_states: Tensor) -> Tensor:
        """Return the logits as the model's own forward pass makes them; how is found by the first call, at load."""
        if self._compute_logits is None:
            from corellm.modelling import logits_function

            self._compute_logits = logits_function(model)
        return self._compute_logits(model, hidden_states)
