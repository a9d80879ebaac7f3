"""The processor of a checkpoint: images by transformers' own, videos by this plugin's; needs no torchvision.

`AutoProcessor` and `Qwen2VLProcessor` cannot be made without torchvision, for they hold a video processor that imports
it. Everything is read from the files a checkpoint has, old or new. Knows tensors and arguments, no prompt.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import isqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

import transformers

from corellm.errors import CheckpointError, MediaError, PromptTooLongError
from corellm_qwen_vl.settings import VideoSettings, check_arguments, pixel_bounds
from corellm_qwen_vl.video_processor import process_video

if TYPE_CHECKING:
    from PIL.Image import Image

    from corellm.multimodal import Video

_MAX_ASPECT_RATIO = 200
"""Largest ratio of an image's or a frame's sides; longer ones are refused."""


class QwenVLProcessor:
    """Turns one image or one video into tensors.

    Attributes:
        chat_template: the processor's; if None, the tokenizer's is used.
    """

    def __init__(self, image_processor: Any, video: VideoSettings, chat_template: Any = None) -> None:
        self.image_processor, self.video, self.chat_template = image_processor, video, chat_template
        self._side: int = image_processor.patch_size * image_processor.merge_size  # of a token, in pixels

    @classmethod
    def from_pretrained(cls, path: Path, defaults: VideoSettings) -> QwenVLProcessor:
        """Read a checkpoint's files.

        A video's settings are in `processor_config.json`, else in `video_preprocessor_config.json`, else, as older
        checkpoints have it, in `preprocessor_config.json` with the images'.

        Raises:
            CheckpointError: there are none, or they have settings that are not supported.
        """
        stated, _ = transformers.ProcessorMixin.get_processor_dict(path)
        files = [path / "video_preprocessor_config.json", path / "preprocessor_config.json"]
        video = stated.get("video_processor")
        if video is None:
            found = next((file for file in files if file.is_file()), None)
            if found is None:
                raise CheckpointError(f"{path} has no processor configuration; put {files[-1].name} there")
            video = json.loads(found.read_text(encoding="utf-8"))
        images = transformers.Qwen2VLImageProcessorPil.from_pretrained(path)
        return cls(images, defaults.of_checkpoint(video), stated.get("chat_template"))

    def __call__(
        self,
        text: str | None = None,
        images: Sequence[Image] = (),
        videos: Sequence[Video] = (),
        *,
        return_tensors: str = "pt",
        max_tokens: int | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Turn one image or one video into tensors.

        Args:
            text: ignored: the adapter places items in prompts.
            images: one image, or none.
            videos: one video, or none.
            return_tensors: ignored: tensors are torch's.
            max_tokens: an item that becomes more is refused before it is processed.
            **kwargs: a request's `mm_processor_kwargs`.

        Returns:
            `pixel_values` and `image_grid_thw`, or the result of `process_video`.

        Raises:
            ProcessorKwargsError, PromptTooLongError, MediaError: the arguments or the item are wrong.
        """
        given = check_arguments(kwargs)
        outputs: dict[str, Any] = {}
        for image in images:
            outputs |= self._process_image(image, given, max_tokens)
        for video in videos:
            outputs |= process_video(video, self.video.of_request(given), max_tokens)
        return outputs

    def _process_image(self, image: Image, kwargs: Mapping[str, Any], max_tokens: int | None) -> Mapping[str, Any]:
        least, most = self._image_bounds(kwargs)
        pixels = {"min_pixels": least, "max_pixels": most}
        try:
            patches = self.image_processor.get_number_of_image_patches(image.height, image.width, pixels)
        except ValueError as error:
            raise MediaError(f"{image.width} x {image.height} pixels: {error}", got=image.size) from error
        tokens = patches // self.image_processor.merge_size**2
        if max_tokens is not None and tokens > max_tokens:
            raise PromptTooLongError(
                f"the image of {image.width} x {image.height} pixels becomes {tokens} tokens, more than "
                f"max_model_len={max_tokens}; lower min_pixels and max_pixels in mm_processor_kwargs"
            )
        size = {"shortest_edge": least, "longest_edge": most}  # of pixels, not of edges
        processed: Mapping[str, Any] = self.image_processor([image], size=size, return_tensors="pt")
        return processed

    def _image_bounds(self, kwargs: Mapping[str, Any]) -> tuple[int, int]:
        size = self.image_processor.size
        return pixel_bounds(size.shortest_edge, size.longest_edge, kwargs)

    # --- the worst case ---------------------------------------------------------------------------------------------

    def largest_image(self, tokens: int, kwargs: Mapping[str, Any]) -> tuple[int, int]:
        """Width and height of an image of the most tokens, at most `tokens`."""
        _, most = self._image_bounds(check_arguments(kwargs))
        return _near_square(min(tokens, most // self._side**2), self._side)

    def largest_video(self, tokens: int, kwargs: Mapping[str, Any]) -> tuple[int, int, int]:
        """Frames, width and height of such a video: of few large frames, which cost the encoder most."""
        video = self.video.of_request(check_arguments(kwargs))
        step = video.temporal_patch_size
        per_frame = video.max_pixels // video.factor**2 // (step if video.bounds_all_frames else 1)
        per_frame = max(1, min(tokens, per_frame))
        groups = 1 if video.bounds_all_frames else max(1, min(video.max_frames // step, tokens // per_frame))
        return min(groups * step, video.max_frames), *_near_square(per_frame, video.factor)

    def most_tokens(self, images: Mapping[str, Any], videos: Mapping[str, Any], text_per_step: int) -> dict[str, int]:
        """`{modality: tokens}` that no image and no video exceeds; each temporal patch of a video comes with text."""
        video = self.video.of_request(check_arguments(videos))
        groups = -(-video.max_frames // video.temporal_patch_size)
        least, most = (-(-bound // video.factor**2) for bound in (video.min_pixels, video.max_pixels))
        if video.bounds_all_frames:  # five frames count as four when sizes are rounded, but become three groups
            least, most = (3 * bound // (2 * video.temporal_patch_size) + 1 for bound in (least, most))
        else:
            least, most = least * groups, most * groups
        lower, upper = (-(-bound // self._side**2) for bound in self._image_bounds(check_arguments(images)))
        image = _most_tokens(lower, upper, groups=1)
        return {"image": image, "video": _most_tokens(least, most, groups) + groups * text_per_step}


def _near_square(tokens: int, side: int) -> tuple[int, int]:
    high = max(1, isqrt(tokens))
    return max(1, tokens // high) * side, high * side


def _most_tokens(least: int, most: int, groups: int) -> int:
    """Tokens of `groups` images, together between `least` and `most` before their sides are rounded to whole ones.

    No side is rounded to zero, so very long images exceed `most`: sqrt(200 n) tokens in one row instead of n.
    Sides that must grow are rounded up: n tokens become at most (a + 1) (b + 1) with a b = n, a + b < 15 sqrt(n).
    """
    return max(
        most,
        isqrt(_MAX_ASPECT_RATIO * most * groups) + groups,
        least + 15 * (isqrt(least * groups) + 1) + groups,
    )
