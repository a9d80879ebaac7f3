"""The core's implementations of the processing hooks, for adapters that have none of their own.

Registered last in every model's plugin manager, so an adapter's own implementation goes first. Knows Hugging Face
processors from the outside only: how they are called, and which arguments they accept.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import asdict
from inspect import signature
from typing import Any

from corellm.config import KWARGS_GROUPS, MultiModalConfig, kwargs_for, suggestion
from corellm.errors import CorellmError, MediaTooLargeError, ProcessorKwargsError
from corellm.hookspecs import ChatPrompt, ModelContext, hookimpl
from corellm.media.video import Video
from corellm.multimodal.aspect_ratio import check_scaled, is_extreme, plain_size, reraise_for_aspect_ratio
from corellm.multimodal.chat.rendering import ChatRenderer
from corellm.multimodal.parsing import DataParser
from corellm.plugin.hook_callers import HookCallers, adapter_implements
from corellm.templates.renderer import TemplateRenderer

HF_ARGUMENT = {"image": "images", "video": "videos", "audio": "audio"}
"""The argument of a Hugging Face processor for the media of a modality."""

SUBPROCESSORS = {"image": "image_processor", "video": "video_processor", "audio": "feature_extractor"}
"""The attribute of a Hugging Face processor that processes the items of a modality."""

_NOT_FOR_USERS = frozenset(
    {"return_tensors", "device", "disable_grouping", "data_format", "input_data_format"}
    | {"raw_speech", "sampling_rate", "return_attention_mask", "video_metadata", "return_metadata"}
    | {"text", *HF_ARGUMENT.values()}
)
_SIZES = ("size", "crop_size", "pad_size", "image_grid_pinpoints")
"""Arguments of image processors that state how many pixels an image may have, or one of its parts."""


class ProcessingDefaults:
    """Defaults of the hooks that run in the front end."""

    def __init__(self, context: ModelContext, config: MultiModalConfig, templates: TemplateRenderer) -> None:
        self.context = context
        self.config = config
        self._chat = ChatRenderer(context.tokenizer, templates)
        self.hooks: HookCallers
        """The model's hook callers, which include this object's; set after registration."""

    @hookimpl(trylast=True)
    def get_data_parser(self) -> DataParser:
        """Media in any common form, audio at the feature extractor's rate; embeddings of the text model's width."""
        text_config = self.context.hf_config.get_text_config()
        return DataParser(
            self.config,
            hidden_size=getattr(text_config, "hidden_size", None),
            sampling_rate=lambda: int(self.context.hf_processor.feature_extractor.sampling_rate),
        )

    @hookimpl(trylast=True)
    def get_mm_kwargs_names(self, modality: str) -> Collection[str] | None:
        """Arguments that the Hugging Face processor takes for the modality; None where an adapter calls it itself."""
        if adapter_implements(self.hooks.call_hf_processor):
            return None
        return declared_arguments(self.context.hf_processor, modality)

    @hookimpl(trylast=True)
    def call_hf_processor(
        self, prompt: str, mm_data: Mapping[str, Any], mm_kwargs: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Call the Hugging Face processor with the one item, and with dummy text if it needs text.

        Raises:
            ProcessorKwargsError: an argument is unknown, a size is above the one that memory was planned for, or a
                value does not fit this item.
        """
        processor = self.context.hf_processor
        if mm_kwargs:
            check_processor_kwargs(processor, mm_kwargs)
            for modality in mm_data:
                check_sizes(processor, modality, kwargs_for(modality, self.config.mm_processor_kwargs), mm_kwargs)
        media: dict[str, Any] = {HF_ARGUMENT[modality]: list(items) for modality, items in mm_data.items()}
        if "audio" in media:
            media["sampling_rate"] = processor.feature_extractor.sampling_rate
        if "videos" in media:
            (video,) = media.pop("videos")
            media |= video_arguments(video, self.config.max_video_bytes)
        text = {} if processes_media_alone(processor) else {"text": prompt}
        try:
            outputs: Mapping[str, Any] = processor(**text, return_tensors="pt", **{**mm_kwargs, **media})
        except Exception as error:
            extreme = any(map(is_extreme, mm_data.get("image", ())))  # then the image is at fault
            if isinstance(error, CorellmError) or not mm_kwargs or extreme:
                raise
            raise ProcessorKwargsError(
                f"mm_processor_kwargs: {dict(mm_kwargs)} does not fit this {'/'.join(mm_data)}: "
                f"{' '.join(str(error).split())}",
                got=dict(mm_kwargs),
            ) from error
        return outputs

    @hookimpl(trylast=True)
    def apply_hf_processor_tokens_only(self, token_ids: list[int]) -> list[int]:
        """Return the prompt's tokens unchanged."""
        return token_ids

    @hookimpl(trylast=True)
    def make_context(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool,
        chat_template: str | None,
        tools: Sequence[Mapping[str, Any]] | None,
        chat_template_kwargs: Mapping[str, Any],
    ) -> ChatPrompt | None:
        """Return the rendered chat template, or None without one."""
        if chat_template is None:
            return None
        return self._chat.render(
            messages,
            chat_template,
            lambda modality, index: self.hooks.get_placeholder_str(modality=modality, index=index),
            add_generation_prompt=add_generation_prompt,
            tools=tools,
            variables=chat_template_kwargs,
        )


def video_arguments(video: Video, max_bytes: int) -> dict[str, Any]:
    """Arguments for a Hugging Face processor of one video: all frames, for the processor to sample from.

    Raises:
        MediaTooLargeError: the frames take more than `max_bytes`, or are too many to be read at once.
        MediaError: a frame cannot be decoded.
    """
    import numpy as np

    known = video.metadata
    shape = (video.num_frames, known.height, known.width, 3)
    if math.prod(shape) > max_bytes:
        raise MediaTooLargeError(
            f"this model's processor needs all {video.num_frames} frames of {known.width} x {known.height} pixels at "
            f"once, {math.prod(shape)} bytes, more than the {max_bytes} allowed (max_video_bytes); give fewer frames",
            expected=max_bytes,
            got=math.prod(shape),
        )
    reader = video.read()
    frames = np.empty(shape, np.uint8)
    for place, frame in zip(frames, reader, strict=True):
        place[...] = frame
    sample = range(video.num_frames) if known.frames_indices is None else known.frames_indices
    metadata = {key: value for key, value in asdict(known).items() if key != "do_sample_frames"}
    arguments: dict[str, Any] = {
        "videos": [frames],
        "video_metadata": [metadata | {"frames_indices": list(sample)}],
    }
    if known.do_sample_frames is not None:
        arguments["do_sample_frames"] = known.do_sample_frames
    elif known.frames_indices is not None:
        arguments["do_sample_frames"] = False
    return arguments


def processes_media_alone(processor: Any) -> bool:
    """Whether a Hugging Face processor inherits transformers' own `__call__`, where text changes no media tensor.

    Then it is called without text: to expand and tokenize LLaVA's 576 tokens takes a sixth of an image's time.
    """
    from transformers import ProcessorMixin

    steps = ("__call__", "prepare_inputs_layout", "validate_inputs")
    return all(getattr(type(processor), step, None) is getattr(ProcessorMixin, step, steps) for step in steps)


def accepted_processor_kwargs(processor: Any) -> frozenset[str] | None:
    """Names of the arguments that a processor takes for media; None where it does not say.

    A Hugging Face processor declares them; one of another kind says it by the parameters of its `__call__`, unless that
    takes any.
    """
    if getattr(getattr(processor, "valid_processor_kwargs", None), "__annotations__", None) is not None:
        return frozenset().union(*(declared_arguments(processor, modality) or () for modality in SUBPROCESSORS))
    if not callable(processor):
        return None
    parameters = signature(processor).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return frozenset(parameter.name for parameter in parameters) - _NOT_FOR_USERS


def declared_arguments(processor: Any, modality: str) -> frozenset[str] | None:
    """Names of the arguments that a Hugging Face processor takes for one modality; None where it declares none."""
    types = declared_types(processor, modality)
    return None if types is None else frozenset(types)


def declared_types(processor: Any, modality: str) -> dict[str, Any] | None:
    """`{argument of a Hugging Face processor for one modality: its annotation}`; None where it declares none."""
    declared = getattr(getattr(processor, "valid_processor_kwargs", None), "__annotations__", None)
    subprocessor = getattr(processor, SUBPROCESSORS.get(modality, ""), None)
    if declared is None or subprocessor is None:
        return None
    kinds = (declared.get(KWARGS_GROUPS[modality]), getattr(subprocessor, "valid_kwargs", None))
    named = [kind.__annotations__ for kind in kinds if hasattr(kind, "__annotations__")]
    types = {name: kind for annotations in named for name, kind in annotations.items() if name not in _NOT_FOR_USERS}
    return types if named else None


def check_processor_kwargs(processor: Any, mm_kwargs: Mapping[str, Any]) -> None:
    """Refuse arguments the processor does not know; transformers ignores them with a log message.

    Raises:
        ProcessorKwargsError: names the unknown argument and those accepted.
    """
    accepted = accepted_processor_kwargs(processor)
    unknown = sorted(set(mm_kwargs) - accepted if accepted is not None else set(mm_kwargs) & _NOT_FOR_USERS)
    if unknown:
        raise ProcessorKwargsError(
            f"mm_processor_kwargs: {type(processor).__name__} does not take {', '.join(map(repr, unknown))}"
            + suggestion(unknown[0], accepted or ()),
            expected=sorted(accepted or ()),
            got=unknown,
        )


class ProcessingChecks:
    """What the core checks around every call of a processor, also where an adapter makes the call itself.

    Args:
        context: of the model.
        config: with the operator's limits and processor arguments.
    """

    def __init__(self, context: ModelContext, config: MultiModalConfig) -> None:
        self.context, self.config = context, config

    @hookimpl(wrapper=True)
    def call_hf_processor(
        self, mm_data: Mapping[str, Any], mm_kwargs: Mapping[str, Any]
    ) -> Generator[None, Mapping[str, Any], Mapping[str, Any]]:
        """Refuse an image that the processor would scale to gigabytes, before it does.

        Raises:
            MediaError: the processor refuses the image's sides, or would scale it above the limit.
        """
        extreme = [image for image in mm_data.get("image", ()) if is_extreme(image)]
        if not extreme:
            return (yield)
        for image in extreme:
            check_scaled(image, self.context.hf_processor, mm_kwargs, self.config.max_image_pixels)
        with reraise_for_aspect_ratio(extreme[0]):
            return (yield)


def check_sizes(processor: Any, modality: str, operators: Mapping[str, Any], mm_kwargs: Mapping[str, Any]) -> None:
    """Refuse a size above the operator's or the checkpoint's, for which memory was planned.

    For processors whose tensors grow with the size while an item's tokens may not. An image is cropped or padded to no
    more than its `size` where nothing else is planned.

    Raises:
        ProcessorKwargsError: names both sizes, and how to allow the larger one.
    """
    part = getattr(processor, SUBPROCESSORS.get(modality, ""), None) or getattr(processor, "image_processor", None)
    for name in _SIZES:
        planned = operators.get(name) or getattr(part, name, None) or operators.get("size", getattr(part, "size", None))
        if planned is not None and name in mm_kwargs and _extent(mm_kwargs[name]) > _extent(planned):
            raise ProcessorKwargsError(
                f"mm_processor_kwargs: {name} {mm_kwargs[name]} of a request is above {plain_size(planned)}, for which "
                f"memory was planned at start; start with LLM(..., mm_processor_kwargs={{{name!r}: ...}}) for more",
                expected=planned,
                got=mm_kwargs[name],
            )


def _extent(size: Any) -> float:
    """Number of pixels that a size, or the largest of several, allows; 0 for none, which the processor refuses."""
    size = plain_size(size)
    sides = list(size.values()) if isinstance(size, Mapping) else size if isinstance(size, (list, tuple)) else [size]
    if any(isinstance(side, (list, tuple, Mapping)) for side in sides):
        return max(map(_extent, sides))
    numbers = [side for side in sides if isinstance(side, (int, float))]
    is_pair = {"height", "width"} <= set(size) if isinstance(size, Mapping) else len(sides) == 2
    if is_pair and len(numbers) == len(sides):
        return math.prod(numbers)
    return max(numbers, default=0) ** 2
