"""The processor of a checkpoint: four frames of a video to pixels, without torchvision, by which transformers has them.

The pixels are those of transformers' `InstructBlipVideoVideoProcessor`, bit for bit: bytes are resized as bytes. Knows
which frames are taken, and what a checkpoint's files say of them and of the Q-Former's tokenizer; knows no prompt.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import transformers
from torch import Tensor
from transformers.image_utils import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD

from corellm.errors import CheckpointError, MediaError
from corellm_blip2.instruct_video import FRAMES

if TYPE_CHECKING:
    from corellm.multimodal import Video

_BICUBIC = 3
_SERVED: Mapping[str, Any] = {
    "do_resize": True,
    "resample": _BICUBIC,
    "do_center_crop": False,
    "do_rescale": True,
    "do_normalize": True,
}
"""Settings that are the same for all checkpoints, and the defaults."""


class VideoProcessor:
    """Turns a video into pixels.

    Args:
        settings: of the frames, under the names that they have in a checkpoint's files.
        qformer_tokenizer: the Q-Former's.
        num_query_tokens: embeddings of a frame, if the checkpoint's files state it.

    Raises:
        CheckpointError: frames are not processed as settings ask.
    """

    def __init__(self, settings: Mapping[str, Any], qformer_tokenizer: Any, num_query_tokens: int | None) -> None:
        self.qformer_tokenizer, self.num_query_tokens = qformer_tokenizer, num_query_tokens
        self._size = _size(settings.get("size", {"height": 384, "width": 384}))
        scale = 1.0 / settings.get("rescale_factor", 1 / 255)  # means and deviations are those of bytes
        self._mean, self._std = (
            (torch.tensor(settings.get(name) or usual) * scale).view(-1, 1, 1)
            for name, usual in (("image_mean", OPENAI_CLIP_MEAN), ("image_std", OPENAI_CLIP_STD))
        )
        for name, served in _SERVED.items():
            if (settings.get(name, served) or False) != served:
                raise CheckpointError(
                    f"the processor's configuration asks for {name}={settings[name]!r}, and this plugin processes "
                    f"videos with {name}={served!r} alone; make it that"
                )

    @classmethod
    def from_pretrained(cls, path: Path) -> VideoProcessor:
        """Read a checkpoint's files.

        Settings of the frames are in `processor_config.json` or in a file of their own, else they are those of
        InstructBLIP's images.

        Raises:
            CheckpointError: there are none, or they have settings that are not served.
        """
        stated, _ = transformers.ProcessorMixin.get_processor_dict(path)
        files = [path / "video_preprocessor_config.json", path / "preprocessor_config.json"]
        in_files = (json.loads(file.read_text(encoding="utf-8")) for file in files if file.is_file())
        settings = stated.get("video_processor") or next(in_files, stated.get("image_processor"))
        if settings is None:
            raise CheckpointError(f"{path} has no processor configuration; put {files[-1].name} there")
        tokenizer = transformers.AutoTokenizer.from_pretrained(path, subfolder="qformer_tokenizer")
        return cls(settings, tokenizer, stated.get("num_query_tokens"))

    def __call__(self, videos: Sequence[Video]) -> dict[str, Tensor]:
        """Return `pixel_values` `[videos, 4, 3, height, width]`.

        Raises:
            MediaError: a video is not to be sampled and has another number of frames, or one cannot be decoded.
        """
        return {"pixel_values": torch.stack([self._pixels(video) for video in videos])}

    def _pixels(self, video: Video) -> Tensor:
        frames = torch.from_numpy(np.stack(list(video.read(_sample(video)))))
        resized = torch.nn.functional.interpolate(
            frames.permute(0, 3, 1, 2).contiguous(), self._size, mode="bicubic", antialias=True
        )
        return resized.float().sub_(self._mean).div_(self._std)


def _sample(video: Video) -> list[int]:
    """Return indices of the frames that are taken: each at the start of a quarter, so a short video's several times.

    All frames, where the caller wants no sample taken or gave one.

    Raises:
        MediaError: they are not four.
    """
    known, count = video.metadata, video.num_frames
    wanted = known.frames_indices is None if known.do_sample_frames is None else known.do_sample_frames
    if not wanted and count != FRAMES:
        raise MediaError(
            f"{count} frames that are not to be sampled, and the model takes {FRAMES}; give so many, or all of the "
            f"video's, or have them sampled with 'do_sample_frames': True in the video's metadata",
            expected=FRAMES,
            got=count,
        )
    return [i * count // FRAMES for i in range(FRAMES)]


def _size(stated: Any) -> tuple[int, int]:
    """Return the height and width of frames after resizing.

    Raises:
        CheckpointError: they depend on the video.
    """
    if isinstance(stated, int):
        return stated, stated
    if not isinstance(stated, Mapping) or not {"height", "width"} <= stated.keys():
        raise CheckpointError(
            f"the processor's configuration asks for frames of size={stated!r:.100}; give it a height and a width"
        )
    return stated["height"], stated["width"]
