"""Qwen2-VL and Qwen2.5-VL: images and videos become a grid of patches, four patches a token, at any resolution.

A placeholder token becomes as many as the item has tokens. Positions have three axes, time, height and width (M-RoPE);
transformers' model computes them, Qwen2.5-VL's with time in seconds (`second_per_grid_ts`). `processor` and
`video_processor` turn pixels into patches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

from corellm.errors import PlaceholderError
from corellm.hookspecs import ModelContext, hookimpl
from corellm.multimodal import (
    MultiModalFieldConfig,
    MultiModalKwargsItem,
    PromptReplacement,
    PromptUpdateDetails,
    dummy_images,
    dummy_videos,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from corellm.multimodal import MultiModalFeature
    from corellm_qwen_vl.settings import VideoSettings

_CPU_DUMMY_TOKENS = 1024
"""On a CPU memory is not measured by the dummies, and a real tower needs minutes for more."""


class Qwen2VL:
    """The adapter of both; Qwen3-VL's is a subclass."""

    contract = 1
    supported_mm_limits = {"image": None, "video": None}
    refuse_embeddings = "they do not have the grid of patches from which their tokens' positions are computed"
    text_per_step: ClassVar[int] = 0
    """Most tokens of text with each temporal patch of a video."""

    def __init__(self, context: ModelContext) -> None:
        self.context = context

    # --- what it takes ----------------------------------------------------------------------------------------------

    @hookimpl
    def get_placeholder_str(self, modality: str) -> str | None:
        """The item's token between the tokens that begin and end vision."""
        if modality not in self.supported_mm_limits:
            return None
        config = self.context.hf_config
        ids = [config.vision_start_token_id, self._token(modality), config.vision_end_token_id]
        return "".join(self.context.tokenizer.convert_ids_to_tokens(ids))

    @hookimpl
    def get_dummy_mm_data(
        self, seq_len: int, mm_counts: Mapping[str, int], mm_options: Mapping[str, Mapping[str, int]]
    ) -> Mapping[str, Any]:
        """The largest that the checkpoint's and the operator's bounds allow, at most as long as a sequence."""
        tokens = max(1, seq_len - 32)  # for the text around it
        if self.context.device.type == "cpu":
            tokens = min(tokens, _CPU_DUMMY_TOKENS)
        processor = self.context.hf_processor
        width, height = processor.largest_image(tokens, self.context.kwargs_for("image"))
        images = dummy_images(mm_counts.get("image", 0), width=width, height=height, bounds=mm_options.get("image"))
        frames, width, height = processor.largest_video(tokens, self.context.kwargs_for("video"))
        videos = dummy_videos(
            mm_counts.get("video", 0), width=width, height=height, num_frames=frames, bounds=mm_options.get("video")
        )
        return {
            "image": images,
            "video": [(video, {"do_sample_frames": False}) for video in videos],
        }

    @hookimpl
    def get_mm_max_tokens_per_item(self, seq_len: int) -> Mapping[str, int]:
        """A bound computed from the settings; items longer than a sequence are refused."""
        images, videos = self.context.kwargs_for("image"), self.context.kwargs_for("video")
        most = self.context.hf_processor.most_tokens(images, videos, self.text_per_step)
        return {modality: min(tokens, seq_len) for modality, tokens in most.items()}

    def _token(self, modality: str) -> int:
        """The placeholder."""
        token: int = getattr(self.context.hf_config, f"{modality}_token_id")
        return token

    # --- processing -------------------------------------------------------------------------------------------------

    def _video_defaults(self) -> VideoSettings:
        from corellm_qwen_vl.settings import QWEN2

        return QWEN2

    @hookimpl
    def register_processor(self) -> Callable[..., Any]:
        """Return a factory of `QwenVLProcessor`, as transformers' needs torchvision."""
        from corellm_qwen_vl.processor import QwenVLProcessor

        return lambda path: QwenVLProcessor.from_pretrained(path, self._video_defaults())

    @hookimpl
    def get_mm_kwargs_names(self, modality: str) -> Sequence[str]:
        """The sampling of videos does not change images."""
        from corellm_qwen_vl.settings import ACCEPTED, FOR_IMAGES

        return FOR_IMAGES if modality == "image" else ACCEPTED

    @hookimpl
    def call_hf_processor(self, mm_data: Mapping[str, Any], mm_kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Process one item; one that is too long is refused before."""
        from corellm_qwen_vl.settings import check_arguments

        images, videos = mm_data.get("image", ()), mm_data.get("video", ())
        outputs: Mapping[str, Any] = self.context.hf_processor(
            images=images, videos=videos, max_tokens=self.context.max_model_len, **check_arguments(mm_kwargs)
        )
        return outputs

    @hookimpl
    def get_mm_fields_config(self, hf_inputs: Mapping[str, Any]) -> Mapping[str, MultiModalFieldConfig]:
        """Pixels are `[patches of all items, ...]`; other tensors are `[items, ...]`."""
        fields = {}
        for modality, pixels in (("image", "pixel_values"), ("video", "pixel_values_videos")):
            grids = f"{modality}_grid_thw"
            if grids in hf_inputs:
                fields[pixels] = MultiModalFieldConfig.flat_from_sizes(modality, hf_inputs[grids].prod(-1))
                fields[grids] = MultiModalFieldConfig.batched(modality)
        for name in ("second_per_grid_ts", "video_timestamps"):
            fields[name] = MultiModalFieldConfig.batched("video")
        return fields

    @hookimpl
    def get_prompt_updates(
        self, out_mm_kwargs: Mapping[str, Sequence[MultiModalKwargsItem]]
    ) -> list[PromptReplacement]:
        """A placeholder becomes as many as its item has tokens."""

        def update(modality: str) -> PromptReplacement:
            items = out_mm_kwargs.get(modality, ())
            return PromptReplacement(modality, [self._token(modality)], lambda i: self._expanded(modality, items[i]))

        return [update("image"), update("video")]

    def _expanded(self, modality: str, item: MultiModalKwargsItem) -> PromptUpdateDetails:
        """Return the expansion of an item's placeholder."""
        return PromptUpdateDetails.from_seq([self._token(modality)] * sum(self._tokens_per_step(modality, item)))

    def _tokens_per_step(self, modality: str, item: MultiModalKwargsItem) -> list[int]:
        """Tokens of each temporal patch."""
        time, height, width = item[f"{modality}_grid_thw"].data.tolist()
        return [height * width // self.context.hf_config.vision_config.spatial_merge_size**2] * time

    # --- the model --------------------------------------------------------------------------------------------------

    @hookimpl
    def get_multimodal_embeddings(self, model: Any, modality: str, mm_kwargs: Mapping[str, Any]) -> Sequence[Tensor]:
        """Tower and merger: `[tokens, hidden_size]` per item."""
        embeddings: Sequence[Tensor] = self._encode(model, modality, mm_kwargs).pooler_output
        return embeddings

    def _encode(self, model: Any, modality: str, mm_kwargs: Mapping[str, Any]) -> Any:
        if modality == "image":
            return model.get_image_features(mm_kwargs["pixel_values"], mm_kwargs["image_grid_thw"])
        return model.get_video_features(mm_kwargs["pixel_values_videos"], mm_kwargs["video_grid_thw"])

    @hookimpl
    def get_rope_positions(
        self, model: Any, token_ids: Sequence[int], mm_features: Sequence[MultiModalFeature]
    ) -> tuple[Tensor, int]:
        """Positions of an item's tokens are those of its grid; text after it continues from the grid's longest side."""
        import torch

        ids = torch.tensor([token_ids])
        kinds = (ids == self._token("image")).int() + 2 * (ids == self._token("video")).int()
        for first, second in pairwise(mm_features):
            border = second.placeholder.offset
            if first.placeholder.end == border and kinds[0, border - 1] == kinds[0, border] != 0:
                raise PlaceholderError(
                    f"{first.modality} {first.item} and {second.item} stand side by side; the model needs text "
                    f"between them, such as {self.get_placeholder_str(first.modality)} for each",
                    modality=second.modality, item=second.item,
                )  # fmt: skip
        stacked: dict[str, Any] = {}
        for name in ("image_grid_thw", "video_grid_thw", "second_per_grid_ts"):
            tensors = [feature.data[name].data for feature in mm_features if name in feature.data]
            stacked[name] = torch.stack(tensors) if tensors else None
        positions, _ = model.model.get_rope_index(ids, kinds, **stacked)
        # as `generate` goes on: from the last token; a long video's times may be beyond it, and the index's own offset
        offset = int(positions[..., -1].max()) + 1 - len(token_ids)
        return positions[:, 0], offset
