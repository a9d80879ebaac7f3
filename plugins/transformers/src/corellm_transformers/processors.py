"""A checkpoint's Hugging Face processor, without torchvision where it asks for that for videos alone.

Knows how transformers reads processors from files; knows no model family.
"""

from __future__ import annotations

import json
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import transformers
from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

from corellm.errors import CheckpointError, PluginNotFoundError

_VIDEO = "video_processor"


def read_processor(path: Path) -> Any:
    """Return the processor that a checkpoint's files name, else the one transformers has for its type of model.

    Raises:
        PluginNotFoundError: transformers has none.
        CheckpointError: it cannot be made without torchvision.
    """
    stated, _ = transformers.ProcessorMixin.get_processor_dict(path)
    config, _ = transformers.PretrainedConfig.get_config_dict(path)
    name = stated.get("processor_class") or PROCESSOR_MAPPING_NAMES.get(config.get("model_type", ""))
    if name is None:
        names, kind = " or ".join(config.get("architectures") or ["it"]), config.get("model_type")
        also = (
            ". It is an encoder-decoder; corellm itself runs decoders only" if config.get("is_encoder_decoder") else ""
        )
        raise PluginNotFoundError(
            f"no installed plugin serves {names}: transformers {transformers.__version__} has no processor for "
            f"model_type {kind!r:.100}, by which corellm-transformers could{also}"
        )
    cls = processor_class(name)
    return (cls if find_spec("torchvision") is not None else _without_torchvision(cls)).from_pretrained(path)


def processor_class(name: str) -> Any:
    """Return a processor's class by its name.

    Raises:
        CheckpointError: transformers cannot import it.
    """
    try:
        cls = visible(getattr(transformers, name))
        cls.get_attributes()
    except (AttributeError, ImportError) as error:
        raise CheckpointError(f"transformers cannot import {name}: {' '.join(str(error).split())}") from error
    return cls


def visible(cls: Any) -> Any:
    """Return a class that transformers hides for want of torchvision, from its module, if that does without.

    Raises:
        CheckpointError: it does not.
    """
    if not getattr(cls, "is_dummy", False):
        return cls
    try:
        return getattr(import_module(cls.__module__), cls.__name__)
    except ImportError as error:
        raise CheckpointError(f"{cls.__name__} cannot be imported without torchvision") from error


def without_videos(cls: Any) -> Any:
    """Return a subclass of a processor's class that may be made without a video processor; it takes no videos then."""

    class WithoutVideos(cls):  # type: ignore[misc]
        def check_argument_for_proper_class(self, name: str, argument: Any) -> Any:
            return None if name == _VIDEO else super().check_argument_for_proper_class(name, argument)

        def to_dict(self) -> dict[str, Any]:
            stated: dict[str, Any] = super().to_dict()
            stated.pop(_VIDEO, None)
            return stated

    WithoutVideos.__name__ = WithoutVideos.__qualname__ = cls.__name__
    return WithoutVideos


class NoVideos:
    """In the place of a video processor: some processors look at its settings for images, too.

    Args:
        images: the image processor, whose settings they then see.
    """

    def __init__(self, images: Any) -> None:
        self._images = images

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._images, name)

    def __call__(self, *_: Any, **__: Any) -> Any:
        """Raise.

        Raises:
            ImportError: always.
        """
        raise ImportError("transformers processes videos of this model by torchvision, which is not installed")


def _without_torchvision(cls: Any) -> Any:
    """Return a subclass of a processor's class that reads images by Pillow's code, and takes no videos."""

    class WithoutTorchvision(without_videos(cls)):  # type: ignore[misc]
        @classmethod
        def _get_arguments_from_pretrained(cls, path: Any, processor_dict: Any = None, **kwargs: Any) -> list[Any]:
            found: dict[str, Any] = {}
            for name in cls.get_attributes():
                if name == "image_processor":
                    found[name] = _read_image_processor(Path(path), processor_dict or {})
                elif "tokenizer" in name:
                    found[name] = cls._load_tokenizer_from_pretrained(name, path, **kwargs)
                elif name != _VIDEO:
                    found[name] = transformers.AutoFeatureExtractor.from_pretrained(path, **kwargs)
            found[_VIDEO] = NoVideos(found.get("image_processor"))
            return [found[name] for name in cls.get_attributes()]

    WithoutTorchvision.__name__ = WithoutTorchvision.__qualname__ = cls.__name__
    return WithoutTorchvision


def _read_image_processor(path: Path, processor: dict[str, Any]) -> Any:
    stated = processor.get("image_processor")
    file = path / "preprocessor_config.json"
    if stated is None and file.is_file():
        stated = json.loads(file.read_text(encoding="utf-8"))
    name = (stated or {}).get("image_processor_type")
    if name is None:
        config, _ = transformers.PretrainedConfig.get_config_dict(path)
        name = IMAGE_PROCESSOR_MAPPING_NAMES.get(config.get("model_type", ""), {}).get("pil", "")
    return image_processor_class(name).from_pretrained(path)


def image_processor_class(name: str) -> Any:
    """Return Pillow's version of an image processor, by the name of any version.

    Raises:
        CheckpointError: there is none.
    """
    plain = name.removesuffix("Fast").removesuffix("Pil")
    cls = getattr(transformers, f"{plain}Pil", None) or getattr(transformers, plain, None)
    if cls is None or (getattr(cls, "is_dummy", False) and not cls.__name__.endswith("Pil")):
        raise CheckpointError(f"transformers has {name or 'the image processor'} for torchvision only")
    return visible(cls)
