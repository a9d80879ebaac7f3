"""IDEFICS for corellm: `IdeficsForVisionText2Text`, the model of 2023.

An image is one token of the prompt, between two marks. Layers of the decoder attend to images' states, beside those
that attend to text: a token sees the last image before it, up to the end of the text that the image is in. What the
processor writes around images is in `marks`, how the decoder runs in `decoder`.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from corellm.errors import CheckpointError, ProcessorKwargsError
from corellm.hookspecs import ChatPrompt, LoadConfig, ModelContext, hookimpl
from corellm.multimodal import (
    MultiModalFieldConfig,
    MultiModalKwargsItem,
    PromptReplacement,
    PromptUpdateDetails,
    collect_media,
    dummy_images,
)
from corellm_idefics.marks import END_OF_TURN, IMAGE, MARK, Marks

if TYPE_CHECKING:
    from torch import Tensor, nn

    from corellm.multimodal import MultiModalFeature, MultiModalItems

__all__ = ["Idefics"]

_SIZE = 'all images become one size; give size={"height": ..., "width": ...} for another one'
_REFUSED = {
    "add_eos_token": "write the token into the prompt",
    "add_end_of_utterance_token": f"write {END_OF_TURN} into the prompt",
    "do_resize": _SIZE,
    "image_size": _SIZE,
    "transform": "it is for training; leave it out",
}
"""`{argument of the processor's: what to do instead}`."""


class Idefics:
    """The adapter."""

    contract = 1
    supported_mm_limits = {"image": None}
    placeholders = {"image": IMAGE}

    def __init__(self, context: ModelContext) -> None:
        self.context = context

    @cached_property
    def _marks(self) -> Marks:
        return Marks(self.context.tokenizer)

    # --- images -----------------------------------------------------------------------------------------------------

    @hookimpl
    def get_dummy_mm_data(self, mm_counts: Mapping[str, int]) -> Mapping[str, Any]:
        """Every image is resized to the tower's size, so all are equally large."""
        size = self.context.hf_config.vision_config.image_size
        return {"image": dummy_images(mm_counts.get("image", 0), width=size, height=size)}

    @hookimpl(wrapper=True)
    def call_hf_processor(self, mm_kwargs: Mapping[str, Any]) -> Generator[None, Mapping[str, Any], Mapping[str, Any]]:
        """Refuse arguments that change no image as they say, and those that leave nothing of it.

        Raises:
            ProcessorKwargsError: says what to do instead.
        """
        for name in mm_kwargs.keys() & _REFUSED.keys():
            raise ProcessorKwargsError(f"mm_processor_kwargs: {name}: {_REFUSED[name]}", got=mm_kwargs[name])
        outputs = yield
        height, width = outputs["pixel_values"].shape[-2:]
        patch = self.context.hf_config.vision_config.patch_size
        if min(height, width) < patch:
            raise ProcessorKwargsError(
                f"mm_processor_kwargs make an image of {width} x {height} pixels, and the tower takes patches of "
                f"{patch} x {patch}; leave out size"
            )
        return outputs

    @hookimpl
    def get_mm_fields_config(self, hf_inputs: Mapping[str, Any]) -> Mapping[str, MultiModalFieldConfig | None]:
        """Images are counted by dimension 1, behind that of prompts."""
        ones = [1] * hf_inputs["pixel_values"].shape[1]
        return {
            "pixel_values": MultiModalFieldConfig.flat_from_sizes("image", ones, dim=1),
            "image_attention_mask": None,  # `get_visible_states`
        }

    # --- the prompt -------------------------------------------------------------------------------------------------

    @hookimpl
    def make_context(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool, chat_template: str | None
    ) -> ChatPrompt | None:
        """Without a template the published form: `Role: content` in turns, without the space where an image is first.

        Turns end as the model was trained: with a token of their own, or with the line alone.
        """
        if chat_template:
            return None
        end = f"{END_OF_TURN}\n" if END_OF_TURN in self.context.tokenizer.get_vocab() else "\n"
        prompt = ""
        for message in messages:
            parts = message["content"]
            begins = ":" if parts and parts[0]["type"] == "image" else ": "
            content = (part["text"] if part["type"] == "text" else IMAGE for part in parts)
            prompt += message["role"].capitalize() + begins + "".join(content) + end
        return ChatPrompt(prompt + "Assistant:" * add_generation_prompt, collect_media(messages))

    @hookimpl
    def apply_hf_processor_tokens_only(self, token_ids: list[int], mm_counts: Mapping[str, int]) -> list[int]:
        """Begin with BOS, put marks around images, and strip texts at both ends of spaces.

        A prompt with another number of image tokens than of images stays as it is; the core refuses it.
        """
        if token_ids.count(self._marks.image_token_id) != mm_counts.get("image", 0):
            return token_ids
        return self._marks.put(token_ids)

    @hookimpl
    def get_prompt_updates(
        self, mm_items: MultiModalItems, out_mm_kwargs: Mapping[str, Sequence[MultiModalKwargsItem]]
    ) -> list[PromptReplacement]:
        """The image's token stays as it is, with as many states as the image has."""
        image = [self._marks.image_token_id]

        def replacement(index: int) -> PromptUpdateDetails:
            count = mm_items["image"].num_embeddings(index)
            if count is None:
                count = self._num_states(out_mm_kwargs["image"][index]["pixel_values"].data)
            return PromptUpdateDetails(image, num_states=count)

        return [PromptReplacement("image", image, replacement)]

    def _num_states(self, pixel_values: Tensor) -> int:
        """Number of the states of one image `[1, 1, channels, height, width]`."""
        config = self.context.hf_config
        if config.use_resampler:
            return int(config.perceiver_config.resampler_n_latents)
        patch: int = config.vision_config.patch_size
        height, width = pixel_values.shape[-2:]
        return (height // patch) * (width // patch) + 1  # the class token's comes first

    @hookimpl
    def get_visible_states(
        self, token_ids: Sequence[int], mm_features: Sequence[MultiModalFeature]
    ) -> list[tuple[int, int, int]]:
        """From an image's token on, that image alone; behind the end of a text, none."""
        ends = accumulate(feature.placeholder.num_embeds for feature in mm_features)
        images = {
            feature.placeholder.offset: (end - feature.placeholder.num_embeds, end)
            for feature, end in zip(mm_features, ends, strict=True)
        }
        end_of_text = self.context.tokenizer.eos_token_id
        behind = {i + 1: (0, 0) for i, token in enumerate(token_ids[:-1]) if token == end_of_text}
        return [(token, *seen) for token, seen in sorted({**behind, **images}.items())]

    # --- the model --------------------------------------------------------------------------------------------------

    @hookimpl(wrapper=True)
    def load_model(self, load_config: LoadConfig) -> Generator[None, Any, Any]:
        """Join the tables of the vocabulary, once the checkpoint is known to fit.

        Raises:
            CheckpointError: the tokenizer lacks the tokens around an image, or states do not fit the decoder.
        """
        from corellm_idefics.decoder import join_vocabulary

        path, config = self.context.model_path, self.context.hf_config
        vocabulary = self.context.tokenizer.get_vocab()
        if lacking := [token for token in (IMAGE, MARK) if token not in vocabulary]:
            raise CheckpointError(
                f"{path}: the tokenizer does not know {' and '.join(lacking)}, which prompts with images need; add "
                "them to its files"
            )
        if (width := config.vision_config.embed_dim) > config.hidden_size:
            raise CheckpointError(
                f"{path}: embed_dim of the vision tower is {width}, and hidden_size of the decoder, which gets the "
                f"tower's states, {config.hidden_size}; corellm runs towers that are at most as wide as the decoder"
            )
        model = yield
        if load_config.adapt_class is None:  # else it has no output layer, and the core refuses it
            join_vocabulary(model)
        return model

    @hookimpl
    def get_language_model(self, model: Any) -> nn.Module:
        """The layers of text and of images, as the engine calls decoders."""
        from corellm_idefics.decoder import Decoder

        return Decoder(model.model)

    @hookimpl
    def get_multimodal_embeddings(self, model: Any, mm_kwargs: Mapping[str, Any]) -> list[Tensor]:
        """Tower and resampler: `[states, hidden_size]` per image, of which the decoder reads the tower's channels.

        Positions are interpolated for requests with another `size`; at the tower's own size they do not change.
        """
        from torch.nn.functional import pad

        tower, width = model.model.vision_model, model.config.hidden_size
        images = mm_kwargs["pixel_values"].unbind(1)  # each [1, channels, height, width]
        # one by one: a request's images are encoded in one step, however many they are
        each = (tower(image, interpolate_pos_encoding=True).last_hidden_state[0] for image in images)
        if model.config.use_resampler:
            each = (model.model.perceiver_resampler(patches[None])[0] for patches in each)
        return [pad(states, (0, width - states.shape[-1])) for states in each]

    @hookimpl
    def get_encoder_states(self, inputs_embeds: Tensor) -> Tensor:
        """The images' embeddings as they are."""
        return inputs_embeds
