"""What a checkpoint's processor makes of the one item that an encoder reads.

Found by processing small items. Knows processors; knows no model, and not how many states an item becomes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from inspect import signature
from typing import Any, cast

from torch import Tensor
from transformers import ProcessorMixin

from corellm.errors import MediaError
from corellm.hookspecs import ModelContext
from corellm.multimodal import dummy_audios, dummy_images
from corellm_transformers.family import needs_plugin
from corellm_transformers.placeholders import ARGUMENT
from corellm_transformers.processors import Absent
from corellm_transformers.small_items import small_audio, small_image

PARTS = {"audio": "feature_extractor", "image": "image_processor"}
"""The part of a processor by which it takes a modality."""
_OF_TEXT = frozenset({"input_ids", "decoder_input_ids", "decoder_attention_mask", "labels"})
"""What processors return about text."""


class Items:
    """The modality of a checkpoint whose encoder reads one item.

    Args:
        context: of the model.

    Attributes:
        modality: of the item.

    Raises:
        CheckpointError: the processor takes none, or several.
    """

    def __init__(self, context: ModelContext) -> None:
        self.context, self.processor = context, context.hf_processor
        found = [modality for modality, part in PARTS.items() if _is_there(getattr(self.processor, part, None))]
        if len(found) != 1:
            raise needs_plugin(
                f"{type(self.processor).__name__} takes {' and '.join(found) or 'no'} items, and its model is an "
                "encoder-decoder, of which the generic adapter reads those whose encoder reads one item alone",
                "get_encoder_states",
            )
        (self.modality,) = found

    def process(self, item: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return an item's tensors, with the processor's dimension of items.

        Raises:
            MediaError: the processor would cut the item.
        """
        media: dict[str, Any] = {ARGUMENT[self.modality]: item}
        if self.modality == "audio":
            self._check_length(item, kwargs)
            media["sampling_rate"] = self.sampling_rate
        output = self._call(**{**kwargs, **media}, return_tensors="pt")
        return {name: value for name, value in output.items() if name not in _OF_TEXT and isinstance(value, Tensor)}

    @cached_property
    def _call(self) -> Callable[..., Mapping[str, Any]]:
        """The processor, without what it does about text if it must be told about that (the language)."""
        parameters = signature(type(self.processor).__call__).parameters.values()
        must_be_told = {
            one.name for one in parameters if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD
        }
        if must_be_told <= {"self", *ARGUMENT.values()}:
            return cast("Callable[..., Mapping[str, Any]]", self.processor)
        return partial(ProcessorMixin.__call__, self.processor)

    def _check_length(self, samples: Any, kwargs: Mapping[str, Any]) -> None:
        longest = self.longest
        if longest is not None and len(samples) > longest and not kwargs.get("truncation"):
            rate = self.sampling_rate
            raise MediaError(
                f"the audio has {len(samples) / rate:.1f} seconds, and the model's encoder reads {longest / rate:g}; "
                "give it to LLM.transcribe, send it in pieces, or cut it with mm_processor_kwargs={'truncation': True}",
                expected=longest,
                got=len(samples),
            )

    @property
    def longest(self) -> int | None:
        """The samples behind which the feature extractor cuts audio, or begins a piece; None where it does not."""
        part = self.processor.feature_extractor
        seconds = getattr(part, "max_audio_clip_s", None)
        return getattr(part, "n_samples", None) if seconds is None else int(seconds * self.sampling_rate)

    @property
    def sampling_rate(self) -> int:
        """Samples per second of audio."""
        return int(self.processor.feature_extractor.sampling_rate)

    # --- items to try -----------------------------------------------------------------------------------------------

    def small(self, seed: int = 0) -> Any:
        """Return a small item; another one, and of another size, for each seed."""
        return small_audio(self.sampling_rate, seed) if self.modality == "audio" else small_image(seed)

    def larger(self) -> Iterator[Any]:
        """Yield items, each larger than the one before: images of up to 1024 pixels a side, audio of up to a minute."""
        if self.modality == "audio":
            for seconds in (1, 5, 10, 20, 30, 60):
                yield dummy_audios(1, num_samples=min(seconds * self.sampling_rate, self.longest or 2**31))[0]
        else:
            for side in (64, 256, 1024):
                yield dummy_images(1, width=side, height=side)[0]


def _is_there(part: Any) -> bool:
    return part is not None and not isinstance(part, Absent)
