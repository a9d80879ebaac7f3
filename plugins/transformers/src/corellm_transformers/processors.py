"""A checkpoint's Hugging Face processor, without torchvision where it asks for that for videos alone.

Knows how transformers reads processors from files; knows no model family.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import transformers
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

from corellm.errors import CheckpointError

_VIDEO = "video_processor"


def read_processor(path: Path) -> Any:
    """Return the processor that a checkpoint's files name, else the one transformers has for its type of model.

    Raises:
        CheckpointError: transformers has none, or it cannot be made without torchvision.
    """
    cls = processor_class(path)
    if find_spec("torchvision") is None and _VIDEO in cls.get_attributes():
        cls = without_videos(cls)
    return cls.from_pretrained(path)


def processor_class(path: Path) -> Any:
    """Return the class of a checkpoint's processor.

    Raises:
        CheckpointError: transformers has none, or cannot import it.
    """
    stated, _ = transformers.ProcessorMixin.get_processor_dict(path)
    config, _ = transformers.PretrainedConfig.get_config_dict(path)
    name = stated.get("processor_class") or PROCESSOR_MAPPING_NAMES.get(config.get("model_type", ""))
    if name is None:
        raise CheckpointError(f"{path}: transformers has no processor for model_type {config.get('model_type')!r}")
    try:
        cls = getattr(transformers, name)
        cls.get_attributes()
    except (AttributeError, ImportError) as error:
        raise CheckpointError(f"{path}: transformers cannot import {name}: {' '.join(str(error).split())}") from error
    return cls


def without_videos(cls: Any) -> Any:
    """Return a subclass of a processor's class that has no video processor, and processes no videos."""

    class WithoutVideos(cls):  # type: ignore[misc]
        @classmethod
        def _get_arguments_from_pretrained(cls, path: Any, processor_dict: Any = None, **kwargs: Any) -> list[Any]:
            attributes = super().get_attributes()
            cls.get_attributes = classmethod(lambda _: [name for name in attributes if name != _VIDEO])
            try:
                found = super()._get_arguments_from_pretrained(path, processor_dict, **kwargs)
            finally:
                del cls.get_attributes
            found.insert(attributes.index(_VIDEO), None)
            return list(found)

        def check_argument_for_proper_class(self, name: str, argument: Any) -> Any:
            if name == _VIDEO:
                return None
            return super().check_argument_for_proper_class(name, argument)

    WithoutVideos.__name__ = WithoutVideos.__qualname__ = cls.__name__
    return WithoutVideos


def visible(cls: Any) -> Any:
    """Return a class of Pillow's code that transformers hides for want of torchvision, from its module."""
    if not getattr(cls, "is_dummy", False):
        return cls
    try:
        return getattr(import_module(cls.__module__), cls.__name__)
    except ImportError as error:
        raise CheckpointError(f"{cls.__name__} cannot be imported without torchvision") from error
