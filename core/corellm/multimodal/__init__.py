"""Multimodal processing: what an adapter's author imports. None of it imports torch."""

from corellm.media.video import Video, VideoMetadata
from corellm.multimodal.chat import collect_media
from corellm.multimodal.dummy import dummy_audios, dummy_images, dummy_videos
from corellm.multimodal.fields import MultiModalFieldConfig, MultiModalKwargsItem
from corellm.multimodal.inputs import MultiModalFeature, PlaceholderRange
from corellm.multimodal.items import EmbeddingItems, MediaItems, ModalityItems, MultiModalItems
from corellm.multimodal.merging import write_rows
from corellm.multimodal.parsing import DataParser
from corellm.multimodal.prompt_updates import (
    PromptIndexTargets,
    PromptInsertion,
    PromptReplacement,
    PromptUpdate,
    PromptUpdateDetails,
)

__all__ = [
    "DataParser",
    "EmbeddingItems",
    "MediaItems",
    "ModalityItems",
    "MultiModalFeature",
    "MultiModalFieldConfig",
    "MultiModalItems",
    "MultiModalKwargsItem",
    "PlaceholderRange",
    "PromptIndexTargets",
    "PromptInsertion",
    "PromptReplacement",
    "PromptUpdate",
    "PromptUpdateDetails",
    "Video",
    "VideoMetadata",
    "collect_media",
    "dummy_audios",
    "dummy_images",
    "dummy_videos",
    "write_rows",
]
