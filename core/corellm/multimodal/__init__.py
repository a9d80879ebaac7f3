"""From media to what the engine schedules: processed items and a prompt with expanded placeholders.

The names below are for authors of adapters; importing them imports no torch. The files, in reading order:

    inputs              the result: an item's tensors, and the run of prompt tokens that stands for it
    processor           how it is made, one item at a time; with `item_limits`, `uuids`, `processor_kwargs`,
                        `hook_results`
    parsing             what a user gives, to the containers in `items`; with `media_reader`
    hashing             an item's identifier, under which `cache` keeps it processed
    fields              how a processor's tensors divide into items, and join again for an encoder; with `nested`
    prompt_updates      how each item's placeholder gets into the prompt
    defaults            the hooks' default implementations; with `aspect_ratio`
    profile             sizes of the largest items, measured on those that `dummy` makes
    merging             item embeddings into text embeddings
    chat                a conversation to prompt text and media
"""

from corellm.media.frames import FramesInMemory
from corellm.media.video import Video, VideoMetadata
from corellm.multimodal.chat import TEXT_BOUNDARY, collect_media
from corellm.multimodal.defaults import check_processor_kwargs, check_sizes
from corellm.multimodal.dummy import dummy_audios, dummy_images, dummy_videos
from corellm.multimodal.fields import MultiModalFieldConfig, MultiModalKwargsItem
from corellm.multimodal.inputs import MultiModalFeature, PlaceholderRange, embedded_spans
from corellm.multimodal.items import EmbeddingItems, MediaItems, ModalityItems, MultiModalItems
from corellm.multimodal.merging import write_rows
from corellm.multimodal.parsing import DataParser, ModalityParser, RawItems
from corellm.multimodal.prompt_updates import (
    PromptIndexTargets,
    PromptInsertion,
    PromptReplacement,
    PromptUpdate,
    PromptUpdateDetails,
)

__all__ = [
    "TEXT_BOUNDARY",
    "DataParser",
    "EmbeddingItems",
    "FramesInMemory",
    "MediaItems",
    "ModalityItems",
    "ModalityParser",
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
    "RawItems",
    "Video",
    "VideoMetadata",
    "check_processor_kwargs",
    "check_sizes",
    "collect_media",
    "dummy_audios",
    "dummy_images",
    "dummy_videos",
    "embedded_spans",
    "write_rows",
]
