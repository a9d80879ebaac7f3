"""InstructBLIP with videos for corellm: `InstructBlipVideoForConditionalGeneration` with a decoder (Vicuna, OPT).

A video is four frames, each of them an image of InstructBLIP's, and their embeddings stand one frame behind the other.
Everything but the video itself is InstructBLIP's, checkpoints, too: the weights are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corellm.hookspecs import hookimpl
from corellm.multimodal import (
    MultiModalFieldConfig,
    PromptIndexTargets,
    PromptInsertion,
    check_processor_kwargs,
    dummy_videos,
)
from corellm_blip2.instruct import INSTRUCTION, InstructBlip

if TYPE_CHECKING:
    from torch import Tensor

    from corellm.multimodal import MultiModalItems

__all__ = ["FRAMES", "InstructBlipVideo"]

FRAMES = 4
"""Frames of a video: transformers' processor writes tokens for so many."""


class InstructBlipVideo(InstructBlip):
    """The adapter."""

    supported_mm_limits = {"video": 1}
    placeholders = {"video": ""}
    mm_fields_config = {
        "pixel_values": MultiModalFieldConfig.batched("video"),  # [videos, frames, channels, height, width]
        "qformer_input_ids": MultiModalFieldConfig.batched("video"),  # [videos, tokens], or one [tokens] per video
    }

    @staticmethod
    @hookimpl
    def register_config() -> Callable[..., Any]:
        """Return a factory of transformers' configuration, which reads InstructBLIP's checkpoints as well."""
        return _read_config

    @hookimpl
    def register_processor(self) -> Callable[..., Any]:
        """Return a factory of `VideoProcessor`, as transformers' needs torchvision."""
        from corellm_blip2.instruct_video.processor import VideoProcessor

        return VideoProcessor.from_pretrained

    @hookimpl
    def get_dummy_mm_data(self, mm_counts: Mapping[str, int]) -> Mapping[str, Any]:
        """As many frames as are taken, of the tower's size, to which all are resized."""
        size = self.context.hf_config.vision_config.image_size
        return {"video": dummy_videos(mm_counts.get("video", 0), width=size, height=size, num_frames=FRAMES)}

    @hookimpl
    def call_hf_processor(self, mm_data: Mapping[str, Sequence[Any]], mm_kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The frames' pixels, and the instruction's tokens.

        Raises:
            ProcessorKwargsError: an argument is unknown.
            PromptTooLongError: the Q-Former has no positions for the instruction.
            MediaError: a video that is not to be sampled has another number of frames than the model takes.
        """
        processor, arguments = self.context.hf_processor, dict(mm_kwargs)
        instruction = arguments.pop(INSTRUCTION)
        check_processor_kwargs(processor, arguments)
        return {**processor(mm_data["video"]), "qformer_input_ids": [self.instruction_tokens(instruction)]}

    @hookimpl
    def get_prompt_updates(self, mm_items: MultiModalItems) -> list[PromptInsertion]:
        """A video token per frame and query at the very start."""
        config = self.context.hf_config

        def insertion(index: int) -> list[int]:
            count = mm_items["video"].num_embeddings(index) or FRAMES * config.num_query_tokens
            return [config.video_token_id] * count

        return [PromptInsertion("video", PromptIndexTargets.start(), insertion)]

    @hookimpl
    def get_multimodal_embeddings(self, model: Any, mm_kwargs: Mapping[str, Any]) -> list[Tensor]:
        """The embeddings of each frame with its video's instruction: `[frames * queries, hidden_size]` per video."""
        import torch

        videos: Tensor = mm_kwargs["pixel_values"]
        frames = videos.shape[1]
        instructions = [tokens for tokens in mm_kwargs["qformer_input_ids"] for _ in range(frames)]
        embeddings = super().get_multimodal_embeddings(
            model, {"pixel_values": videos.flatten(0, 1), "qformer_input_ids": instructions}
        )
        return [torch.cat(embeddings[i : i + frames]) for i in range(0, len(embeddings), frames)]


def _read_config(path: Path) -> Any:
    """Return a checkpoint's configuration; in one of InstructBLIP, the image's token is the video's."""
    from transformers import InstructBlipVideoConfig

    stated, _ = InstructBlipVideoConfig.get_config_dict(path)
    config = InstructBlipVideoConfig.from_dict({**stated, "model_type": InstructBlipVideoConfig.model_type})
    if config.video_token_id is None:
        config.video_token_id = getattr(config, "image_token_index", None)
    return config
