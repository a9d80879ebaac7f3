"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL keep the contract: `pytest --pyargs corellm_qwen_vl.contract`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import torch
import transformers

from corellm_qwen_vl import Qwen2VL, Qwen3VL
from corellm_qwen_vl.hf_oracle import hf_process
from corellm_testing import AdapterContract, Media, Reference


class QwenReference(Reference):
    """Transformers' own processors, in a process that has a stand-in for torchvision.

    They resize images by torchvision, corellm by Pillow: the pixels of images are those of transformers' processor for
    Pillow.
    """

    @cached_property
    def image_processor(self) -> Any:
        """Transformers' processor for Pillow."""
        return transformers.Qwen2VLImageProcessorPil.from_pretrained(self.checkpoint)

    def process(self, text: str, media: Media, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Process text, images and videos together; videos at two frames a second, as the family's own tools do."""
        images, videos = list(media.get("image", ())), list(media.get("video", ()))
        outputs = hf_process(
            self.checkpoint,
            text=text,
            images=images or None,
            videos=[frames for frames, _ in videos] or None,
            video_metadata=[
                {"total_num_frames": len(frames), "frames_indices": list(range(len(frames))), **known}
                for frames, known in videos
            ]
            or None,
            **({**_sampling(kwargs, [known for _, known in videos]), **kwargs} if videos else kwargs),
        )
        tensors = {name: torch.from_numpy(value) for name, value in outputs.items()}
        if images:
            bounds = {name: value for name, value in kwargs.items() if name in ("min_pixels", "max_pixels", "size")}
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Passing `min_pixels`", FutureWarning)  # requests may have them
                tensors |= self.image_processor(images, return_tensors="pt", **bounds)
        return tensors


def _sampling(kwargs: Mapping[str, Any], metadata: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return how videos are sampled where a request does not say: by the generation's default without their rate."""
    if any("frames_indices" in known for known in metadata):
        return {"do_sample_frames": False}
    if any(known["fps"] is None for known in metadata):
        return {}
    given = kwargs.get("do_sample_frames") is False or "num_frames" in kwargs
    return {"do_sample_frames": True, "fps": None if given else 2.0}


class QwenContract(AdapterContract):
    """The same for all generations."""

    reference = QwenReference
    processor_kwargs = ({"min_pixels": 3136, "max_pixels": 6000}, {"fps": 1.0})
    argument_values: ClassVar[Mapping[str, Sequence[Any]]] = {
        "cap_pixels_per_frame": (True, False),
        "do_sample_frames": (False, True),
        "fps": (1.0, 4.0),
        "max_frames": (8, 10),
        "max_pixels": (4704, 9408),
        "max_video_tokens": (8, 16),
        "min_frames": (8, 6),
        "min_pixels": (4096, 4704),
        "num_frames": (2, 6),
        "size": (
            {"shortest_edge": 4096, "longest_edge": 8192},
            {"shortest_edge": 8192, "longest_edge": 12288},
            {"shortest_edge": 8192, "longest_edge": 40000},
        ),
    }
    exceptions: ClassVar[Mapping[str, str]] = {
        "test_the_dummy_is_the_stated_maximum": "the bound holds for images 200 times as long as wide, too; "
        "the dummies are those that cost the encoder most: nearly square, and on a CPU not larger than needed"
    }


class TestQwen2VL(QwenContract):
    """Dynamic resolution."""

    adapter = Qwen2VL
    architecture = "Qwen2VLForConditionalGeneration"


class TestQwen2_5VL(QwenContract):
    """Window attention in the tower; time in seconds."""

    adapter = Qwen2VL
    architecture = "Qwen2_5_VLForConditionalGeneration"


class TestQwen3VL(QwenContract):
    """Deepstack; time stamps in the prompt."""

    adapter = Qwen3VL
    architecture = "Qwen3VLForConditionalGeneration"
