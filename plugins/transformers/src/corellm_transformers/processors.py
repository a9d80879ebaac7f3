"""A checkpoint's Hugging Face processor, without torchvision where it asks for that for videos alone.

Knows how transformers reads processors from files; knows no model family.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
    name, config = _name_and_config(path)
    if name is None:
        names, kind = " or ".join(config.get("architectures") or ["it"]), config.get("model_type")
        raise PluginNotFoundError(
            f"no installed plugin serves {names}: transformers {transformers.__version__} has no processor for "
            f"model_type {kind!r:.100}, by which corellm-transformers could"
        )
    cls = processor_class(name)
    cls = cls if find_spec("torchvision") is not None else _without_torchvision(cls, path)
    processor = cls.from_pretrained(path)
    if hasattr(processor, "audio_processor"):
        processor.feature_extractor = processor.audio_processor  # the usual name of that part
    return processor


def read_tokenizer(path: Path, trust_remote_code: bool = False) -> Any:
    """Return a checkpoint's tokenizer, which adds no token to a text if the processor asks it for none.

    Some processors leave the token that begins a prompt to the chat template.
    """
    from tokenizers.processors import Sequence as Steps

    tokenizer = transformers.AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code)
    name, _ = _name_and_config(path)
    asked = getattr(processor_class(name), "text_kwargs", {}) if name is not None else {}
    if asked.get("add_special_tokens") is False and isinstance(tokenizer, transformers.PreTrainedTokenizerFast):
        tokenizer.backend_tokenizer.post_processor = Steps([])
    return tokenizer


def _name_and_config(path: Path) -> tuple[str | None, dict[str, Any]]:
    """Return the name of a checkpoint's class of processors, None if there is none, and its configuration."""
    stated, _ = transformers.ProcessorMixin.get_processor_dict(path)
    config, _ = transformers.PretrainedConfig.get_config_dict(path)
    return stated.get("processor_class") or PROCESSOR_MAPPING_NAMES.get(config.get("model_type", "")), config


def processor_class(name: str) -> Any:
    """Return a processor's class by its name.

    Raises:
        CheckpointError: transformers cannot import it.
    """
    try:
        cls = visible(name)
        cls.get_attributes()
    except (AttributeError, ImportError, KeyError) as error:
        raise CheckpointError(f"transformers cannot import {name}: {' '.join(str(error).split())}") from error
    return cls


def visible(name: str) -> Any:
    """Return a class that transformers may hide for want of torchvision, from its module, if that does without.

    Raises:
        CheckpointError: it does not.
        KeyError: transformers has no such class.
    """
    home = f"transformers.{transformers._class_to_module[name]}"
    try:
        return getattr(import_module(home), name)
    except ImportError:
        with _pillows_images(home) as known:
            if known:
                return getattr(import_module(home), name)
        raise CheckpointError(f"{name} cannot be imported without torchvision") from None


@contextmanager
def _pillows_images(home: str) -> Iterator[bool]:
    """Let a processor's module find Pillow's image processing under the name of torchvision's.

    Such modules take from it what has no pixels in it: types of arguments, sizes. Yields whether there is Pillow's.
    """
    package, _, family = home.rpartition(".processing_")
    theirs, pillows = f"{package}.image_processing_{family}", f"{package}.image_processing_pil_{family}"
    if not package or theirs in sys.modules or find_spec(pillows) is None:
        yield False
        return
    sys.modules[theirs] = import_module(pillows)
    try:
        yield True
    finally:
        del sys.modules[theirs]


def without(cls: Any, *parts: str) -> Any:
    """Return a subclass of a processor's class that may be made without these parts; it takes no such media then."""

    class Without(cls):  # type: ignore[misc]
        def check_argument_for_proper_class(self, name: str, argument: Any) -> Any:
            return None if name in parts else super().check_argument_for_proper_class(name, argument)

        def to_dict(self) -> dict[str, Any]:
            stated: dict[str, Any] = super().to_dict()
            return {name: value for name, value in stated.items() if name not in parts}

    Without.__name__ = Without.__qualname__ = cls.__name__
    return Without


class Absent:
    """In the place of a part that needs torchvision: some processors look at its settings for other media, too.

    Args:
        like: another part, whose settings they then see.
    """

    model_input_names: Sequence[str] = ()

    def __init__(self, like: Any = None) -> None:
        self._like = like

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or self._like is None:
            raise AttributeError(name)
        return getattr(self._like, name)

    def __call__(self, *_: Any, **__: Any) -> Any:
        """Raise.

        Raises:
            ImportError: always.
        """
        raise ImportError("transformers processes these media of this model by torchvision, which is not installed")


def absent_parts(cls: Any, model_type: str, stated: str | None = None) -> list[str]:
    """Return the parts that a processor of a class is to do without: videos, and images where audio remains.

    Args:
        cls: of the processor.
        model_type: for which transformers has a class of image processors.
        stated: the class that the checkpoint names.
    """
    parts, names = [_VIDEO], set(cls.get_attributes())
    if "image_processor" in names and names & {"feature_extractor", "audio_processor"}:
        try:
            image_processor_class(stated or image_processor_name(model_type))
        except CheckpointError:
            parts.append("image_processor")
    return parts


def _without_torchvision(cls: Any, path: Path) -> Any:
    """Return a subclass of a processor's class that reads images by Pillow's code, and takes no videos."""
    stated, model_type = _stated_image_processor(path)
    missing = absent_parts(cls, model_type, stated)

    class WithoutTorchvision(without(cls, *missing)):  # type: ignore[misc]
        @classmethod
        def _get_arguments_from_pretrained(cls, path: Any, processor_dict: Any = None, **kwargs: Any) -> list[Any]:
            found: dict[str, Any] = {}
            for name in cls.get_attributes():
                if "tokenizer" in name:
                    found[name] = cls._load_tokenizer_from_pretrained(name, path, **kwargs)
                elif name in missing:
                    continue
                elif name == "image_processor":
                    found[name] = image_processor_class(stated or image_processor_name(model_type)).from_pretrained(
                        path
                    )
                else:
                    found[name] = transformers.AutoFeatureExtractor.from_pretrained(path, **kwargs)
            images = found.get("image_processor")
            return [found[name] if name in found else Absent(images) for name in cls.get_attributes()]

    WithoutTorchvision.__name__ = WithoutTorchvision.__qualname__ = cls.__name__
    return WithoutTorchvision


def _stated_image_processor(path: Path) -> tuple[str | None, str]:
    """Return the class of image processors that a checkpoint's files name, if they do, and its type of model."""
    processor, _ = transformers.ProcessorMixin.get_processor_dict(path)
    config, _ = transformers.PretrainedConfig.get_config_dict(path)
    stated, file = processor.get("image_processor"), path / "preprocessor_config.json"
    if stated is None and file.is_file():
        stated = json.loads(file.read_text(encoding="utf-8"))
    return (stated or {}).get("image_processor_type"), config.get("model_type", "")


def image_processor_name(model_type: str) -> str:
    """Return transformers' class of image processors for a type of model, Pillow's if there is one; empty if none."""
    known = IMAGE_PROCESSOR_MAPPING_NAMES.get(model_type) or {}
    return known.get("pil") or known.get("torchvision") or ""


def image_processor_class(name: str) -> Any:
    """Return Pillow's version of an image processor, by the name of any version.

    Raises:
        CheckpointError: there is none.
    """
    plain = name.removesuffix("Fast").removesuffix("Pil")
    known = next((one for one in (f"{plain}Pil", plain) if one in transformers._class_to_module), None)
    if known is None:
        raise CheckpointError(f"transformers has no class {name or 'of image processors for it'}")
    try:
        return visible(known)
    except CheckpointError as error:
        raise CheckpointError(f"transformers has {name} for torchvision only") from error
