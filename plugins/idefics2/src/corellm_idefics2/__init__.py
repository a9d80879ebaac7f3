"""Idefics2 for corellm: `Idefics2ForConditionalGeneration`.

An image of any size becomes one number of tokens between two marks, or five times as many: of its quarters, and of all
of it. Which marks and spaces the processor writes around images is in `marks`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from corellm.errors import CheckpointError, MediaError, MediaTooLargeError
from corellm.hookspecs import ChatPrompt, ModelContext, hookimpl
from corellm.multimodal import (
    MultiModalFieldConfig,
    MultiModalKwargsItem,
    PromptReplacement,
    PromptUpdateDetails,
    collect_media,
    dummy_images,
)
from corellm_idefics2.marks import Marks

if TYPE_CHECKING:
    from torch import Tensor

    from corellm.multimodal import MultiModalItems

__all__ = ["Idefics2"]

_CROPS = 5
"""What an image is split into: its quarters, and all of it."""
_END_OF_TURN = "<end_of_utterance>\n"


class Idefics2:
    """The adapter."""

    contract = 1
    supported_mm_limits = {"image": None}

    def __init__(self, context: ModelContext) -> None:
        self.context = context

    @cached_property
    def _marks(self) -> Marks:
        processor = self.context.hf_processor
        return Marks(self.context.tokenizer, processor.image_token, processor.fake_image_token)

    def _is_split(self, mm_kwargs: Mapping[str, Any]) -> bool:
        """Whether images are split, by a request's arguments or the checkpoint's settings."""
        return bool(mm_kwargs.get("do_image_splitting", self.context.hf_processor.image_processor.do_image_splitting))

    @cached_property
    def _planned_size(self) -> tuple[int, int]:
        """Width and height of the largest crop for which memory is planned."""
        size = dict(self.context.kwargs_for("image").get("size", self.context.hf_processor.image_processor.size))
        side = max(size.values())
        return size.get("width", side), size.get("height", side)

    # --- images -----------------------------------------------------------------------------------------------------

    @hookimpl
    def register_processor(self) -> Callable[..., Any]:
        """Transformers' processor, by classes that need no torchvision."""
        from corellm_idefics2.processor import make_processor

        return make_processor

    @hookimpl
    def get_placeholder_str(self, modality: str) -> str | None:
        """The checkpoint's image token."""
        return str(self.context.hf_processor.image_token) if modality == "image" else None

    @hookimpl
    def get_dummy_mm_data(
        self, mm_counts: Mapping[str, int], mm_options: Mapping[str, Mapping[str, int]]
    ) -> Mapping[str, Any]:
        """All images become as many tokens; of this one all crops have the largest size."""
        width, height = (side * (1 + self._is_split(self.context.kwargs_for("image"))) for side in self._planned_size)
        bounds = mm_options.get("image")
        return {"image": dummy_images(mm_counts.get("image", 0), width=width, height=height, bounds=bounds)}

    @hookimpl(wrapper=True)
    def call_hf_processor(
        self, mm_data: Mapping[str, Sequence[Any]], mm_kwargs: Mapping[str, Any]
    ) -> Generator[None, Mapping[str, Any], Mapping[str, Any]]:
        """One image's crops and the masks of their own pixels, `[1, crops, ...]`, and the number of crops.

        Raises:
            MediaError: the image is too small to be split, or a crop smaller than a patch.
            MediaTooLargeError: a crop is larger than memory was planned for.
        """
        import torch

        (image,) = mm_data["image"]
        if min(image.size) < 2 and self._is_split(mm_kwargs):
            raise MediaError(f"an image of {image.width} x {image.height} pixels cannot be split; give a larger one")
        outputs = yield
        pixels = outputs["pixel_values"]
        masks = outputs.get("pixel_attention_mask")
        if masks is None:  # do_pad=False: nothing is padding
            masks = torch.ones_like(pixels[:, :, 0], dtype=torch.int64)
        for width, height in _sizes(masks.flatten(0, 1)):
            self._check_size(width, height)
        return {
            "pixel_values": pixels,
            "pixel_attention_mask": masks,
            "num_crops": torch.tensor([pixels.shape[1]]),
        }

    def _check_size(self, width: int, height: int) -> None:
        patch = self.context.hf_config.vision_config.patch_size
        if min(width, height) < patch:
            raise MediaError(
                f"the vision tower takes images of at least {patch} x {patch} pixels, and this one, or a part of it, "
                f"has {width} x {height} where the tower gets it; give a larger image, or leave out the "
                "mm_processor_kwargs that make it smaller"
            )
        planned = self._planned_size
        if width * height > planned[0] * planned[1]:
            raise MediaTooLargeError(
                f"an image of {width} x {height} pixels where the vision tower gets it is above {planned[0]} x "
                f"{planned[1]}, for which memory was planned at start; leave out do_resize, or start with "
                'LLM(..., mm_processor_kwargs={"size": ...}) for more',
                expected=planned[0] * planned[1],
                got=width * height,
            )

    @hookimpl
    def get_mm_fields_config(
        self, hf_inputs: Mapping[str, Any], mm_kwargs: Mapping[str, Any]
    ) -> Mapping[str, MultiModalFieldConfig]:
        """Crops of all images are counted by dimension 1, behind that of prompts; each image has as many."""
        per_image = _CROPS if self._is_split(mm_kwargs) else 1
        counts = [per_image] * (hf_inputs["pixel_values"].shape[1] // per_image)
        crops = MultiModalFieldConfig.flat_from_sizes("image", counts, dim=1)
        return {
            "pixel_values": crops,  # [1, crops, channels, height, width]
            "pixel_attention_mask": crops,  # [1, crops, height, width], ones for pixels, zeros for padding
            "num_crops": MultiModalFieldConfig.batched("image"),
        }

    # --- the prompt -------------------------------------------------------------------------------------------------

    @hookimpl
    def make_context(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool, chat_template: str | None
    ) -> ChatPrompt | None:
        """Without a template the same form: `Role: content` in turns, without the space where an image comes first."""
        if chat_template:
            return None
        prompt = ""
        for message in messages:
            parts = message["content"]
            begins = ":" if parts and parts[0]["type"] == "image" else ": "
            content = (part["text"] if part["type"] == "text" else self._marks.image for part in parts)
            prompt += message["role"].capitalize() + begins + "".join(content) + _END_OF_TURN
        return ChatPrompt(prompt + "Assistant:" * add_generation_prompt, collect_media(messages))

    @hookimpl
    def apply_hf_processor_tokens_only(self, token_ids: list[int], mm_counts: Mapping[str, int]) -> list[int]:
        """Put the marks around images, and a space between a mark and a text right behind it.

        A prompt with another number of image tokens than of images stays as it is; the core refuses it.
        """
        if token_ids.count(self._marks.image_token_id) != mm_counts.get("image", 0):
            return token_ids
        return self._marks.put(token_ids)

    @hookimpl
    def get_prompt_updates(
        self, mm_items: MultiModalItems, out_mm_kwargs: Mapping[str, Sequence[MultiModalKwargsItem]]
    ) -> list[PromptReplacement]:
        """The image token becomes one per embedding, with a mark between one crop's and the next's."""
        marks, per_crop = self._marks, self.context.hf_processor.image_seq_len

        def replacement(index: int) -> PromptUpdateDetails:
            count = mm_items["image"].num_embeddings(index)
            if count is None:
                count = out_mm_kwargs["image"][index]["pixel_values"].data.shape[1] * per_crop
            return PromptUpdateDetails.select_token_id(marks.between(count, per_crop), marks.image_token_id)

        return [PromptReplacement("image", target=[marks.image_token_id], replacement=replacement)]

    # --- the model --------------------------------------------------------------------------------------------------

    @hookimpl
    def load_model(self) -> None:
        """Refuse what cannot be served before weights are read; the core's default then loads them.

        Raises:
            CheckpointError: the processor and the model disagree about the number of an image's embeddings.
        """
        stated, made = self.context.hf_processor.image_seq_len, self.context.hf_config.perceiver_config
        if stated != made.resampler_n_latents:
            raise CheckpointError(
                f"{self.context.model_path}: image_seq_len is {stated} in the processor's configuration, and "
                f"resampler_n_latents {made.resampler_n_latents} in config.json; make the former what the model has"
            )

    @hookimpl
    def get_multimodal_embeddings(self, model: Any, mm_kwargs: Mapping[str, Any]) -> list[Tensor]:
        """Tower, projection, resampler, crop by crop without padding: `[crops * latents, hidden_size]` per image."""
        import torch

        crops = mm_kwargs["pixel_values"].flatten(0, 1)  # [crops of all images, channels, height, width]
        sizes = _sizes(mm_kwargs["pixel_attention_mask"].flatten(0, 1))
        rows = [
            _embedded(model.model, crop[None, :, :height, :width])
            for crop, (width, height) in zip(crops, sizes, strict=True)
        ]
        by_image = torch.split(torch.cat(rows), mm_kwargs["num_crops"].flatten().tolist())
        return [own.flatten(0, 1) for own in by_image]


def _sizes(masks: Tensor) -> list[tuple[int, int]]:
    """Return the width and height of each crop without its padding, of masks `[crops, height, width]`."""
    return list(zip(masks[:, 0].sum(1).tolist(), masks[:, :, 0].sum(1).tolist(), strict=True))


def _embedded(model: Any, pixels: Tensor) -> Tensor:
    """Return the embeddings `[1, latents, hidden_size]` of one crop `[1, channels, height, width]`.

    Not by the model's own method, which takes a black image for padding.
    """
    import torch

    patches = model.vision_model(pixel_values=pixels).last_hidden_state  # [1, patches, width of the tower]
    everything = torch.ones(patches.shape[:2], dtype=torch.bool, device=patches.device)
    embeddings: Tensor = model.connector(patches, attention_mask=everything)
    return embeddings
