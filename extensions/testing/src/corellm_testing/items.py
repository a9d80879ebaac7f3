"""Media for tests: random items of any size, odd forms of images, plain items and edges, odd rates and times."""

from __future__ import annotations

import io
import wave
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image


def make_image(width: int, height: int, seed: int = 0) -> Image:
    """Return an RGB image: coloured noise with a red corner."""
    import numpy as np
    from PIL import Image as images

    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    pixels[: height // 3, : width // 3] = (255, 0, 0)
    return images.fromarray(pixels)


def make_video(num_frames: int, width: int, height: int, seed: int = 0, fps: float = 4.0) -> Any:
    """Return a video of noise: `(frames [num_frames, height, width, 3] uint8, {"fps": fps})`."""
    import numpy as np

    frames = np.random.default_rng(seed).integers(0, 256, (num_frames, height, width, 3), dtype=np.uint8)
    return frames, {"fps": fps}


def make_audio(num_samples: int, rate: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Return audio, `[num_samples]` float32: swelling noise over a tone that depends on the seed."""
    import numpy as np

    at = np.arange(num_samples) / rate
    noise = np.random.default_rng(seed).standard_normal(num_samples) * 0.1 * (1 + np.sin(4 * at))
    tone: np.ndarray[Any, Any] = (noise + 0.2 * np.sin(2 * np.pi * (150 + 83 * seed) * at)).astype(np.float32)
    return tone


def long_audio(num_samples: int, rate: int) -> np.ndarray[Any, Any]:
    """Return audio of any length, `[num_samples]` float32: some seconds again and again; the beginning of longer."""
    import numpy as np

    repeated: np.ndarray[Any, Any] = np.resize(make_audio(7 * rate, rate, 9), num_samples)
    return repeated


def make_tones(rate: int, other: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the same audio, `[num_samples]` float32, at two rates: sines that swell and fade, computed at each.

    The first has tones that the other rate is too low for, too, where it can hold any.
    """
    import numpy as np

    seconds = 0.6
    tones = np.linspace(150, 0.3 * min(rate, other), 9)
    beyond = np.linspace(0.65 * other, 0.48 * rate, 3) if rate > 1.4 * other else tones[:0]

    def sampled(hertz: np.ndarray[Any, Any], per_second: int) -> np.ndarray[Any, Any]:
        at = np.arange(round(seconds * per_second)) / per_second
        waves = np.sin(2 * np.pi * np.outer(at, hertz) + 1.7 * np.arange(len(hertz)) ** 2)
        samples: np.ndarray[Any, Any] = 0.05 * np.sin(np.pi * at / seconds) ** 4 * waves.sum(1)
        return samples.astype(np.float32)

    return sampled(np.concatenate([tones, beyond]), rate), sampled(tones, other)


def timed_videos() -> dict[str, Any]:
    """Return `{description: video}`: frames at uneven and at very late times, of odd rates and of unknown ones."""
    frames, _ = make_video(6, 60, 50, 7)
    uneven = {"frames_indices": [0, 1, 2, 30, 31, 95], "total_num_frames": 100}
    late = {"frames_indices": [0, 255, 256, 65_535, 65_536, 69_999], "total_num_frames": 70_000}
    return {
        "a video of frames at uneven times": (frames, {"fps": 10.0, **uneven}),
        "a video of frames hours apart": (frames, {"fps": 2.0, **late}),
        "a video of 29.97 frames a second": (frames, {"fps": 30_000 / 1001}),
        "a video of 12.5 frames a second": (make_video(48, 60, 50, 8)[0], {"fps": 12.5}),
        "a video of 2.4 frames a second": (make_video(40, 60, 50, 9)[0], {"fps": 2.4}),
        "a video of a frame in ten seconds": (frames[:5], {"fps": 0.1}),
        "a video of unknown rate": (frames, {"fps": None}),
        "a video of frames far apart and of unknown rate": (frames, {"fps": None, **late}),
    }


def odd_images() -> dict[str, Any]:
    """Return `{description: image or its file's bytes}`: every mode, tiny, long and rotated ones, sixteen bits."""
    import numpy as np
    from PIL import Image as images

    plain = make_image(40, 30, 1)
    found: dict[str, Any] = {mode: plain.convert(mode) for mode in ("1", "L", "LA", "P", "RGBA", "CMYK", "YCbCr")}
    found["P with a transparent colour"] = _encoded(plain.convert("P"), "PNG", transparency=0)
    found["16 bits of grey"] = images.fromarray(np.arange(40 * 30, dtype=np.uint16).reshape(30, 40) * 50)
    found |= {f"{width} x {height}": make_image(width, height, 2) for width, height in ((1, 1), (1, 30), (30, 1))}
    found["100 times as wide as high"] = make_image(300, 3, 3)
    found["turned by EXIF"] = turned_image()[0]
    return found


def turned_image() -> tuple[bytes, Image]:
    """Return the bytes of a file with an EXIF orientation, and the upright image."""
    from PIL import Image as images

    upright = make_image(24, 40, 4)
    exif = images.Exif()
    exif[0x0112] = 6  # viewers rotate it by 270 degrees
    return _encoded(upright.transpose(images.Transpose.ROTATE_90), "PNG", exif=exif), upright


def forms_of(modality: str, rate: int) -> tuple[Any, dict[str, Any]]:
    """Return an item and other forms of the same item, `{description: item}`.

    Args:
        modality: of the item.
        rate: of audio, samples per second.
    """
    import numpy as np
    import torch

    if modality == "image":
        image = make_image(40, 30, 5)
        pixels, file = np.array(image), _encoded(image, "PNG")
        return image, {
            "an array": pixels,
            "a tensor": torch.from_numpy(pixels.transpose(2, 0, 1).copy()),
            "the bytes of a PNG file": file,
            "a PNG file in a bytearray": bytearray(file),
        }
    if modality == "video":
        frames, metadata = make_video(4, 60, 50, 5)
        from PIL import Image as images

        return (frames, metadata), {
            "a list of images": ([images.fromarray(frame) for frame in frames], metadata),
            "a list of arrays": ([frame.copy() for frame in frames], metadata),
            "a tensor": (torch.from_numpy(frames.transpose(0, 3, 1, 2).copy()), metadata),
        }
    whole = (32767 * make_audio(rate // 2, rate, 5).clip(-1, 1)).astype(np.int16)
    audio = whole.astype(np.float32) / 32768
    return audio, {
        "floats with their rate": (audio, rate),
        "a tensor": torch.from_numpy(audio.copy()),
        "integers": (whole, rate),
        "a WAV file": wav_file(whole, rate),
    }


def plain_items(modality: str, rate: int) -> dict[str, Any]:
    """Return `{description: item}`: black, of one colour, silent, or nearly: models take crops of zeros for padding.

    An image whose largest value is 1 may be taken for one that is scaled already.

    Args:
        modality: of the items.
        rate: of audio, samples per second.
    """
    import numpy as np
    from PIL import Image as images

    if modality == "audio":
        return {"silence": np.zeros(rate // 2, np.float32), "faint audio": make_audio(rate // 2, rate, 6) / 4096}
    black, coloured = np.zeros((50, 60, 3), np.uint8), np.full((50, 60, 3), (90, 140, 200), np.uint8)
    dark = np.array(make_image(60, 50, 6)) % 2
    if modality == "video":
        return {
            "a black video": (np.stack([black] * 4), {"fps": 4.0}),
            "a nearly black video": (np.stack([dark] * 4), {"fps": 4.0}),
            "a video of one colour": (np.stack([coloured] * 4), {"fps": 4.0}),
        }
    half = np.concatenate([np.array(make_image(60, 50, 6)), black], axis=1)
    pixels = {
        "a black image": black,
        "a nearly black image": dark,
        "an image of one colour": coloured,
        "a half black image": half,
    }
    return {what: images.fromarray(image) for what, image in pixels.items()}


def edged_items(modality: str, rate: int) -> dict[str, Any]:
    """Return `{description: item}`: of whole patches of any usual side or whole frames, plain on one side or around.

    Args:
        modality: of the items.
        rate: of audio, samples per second.
    """
    import numpy as np
    from PIL import Image as images

    if modality == "audio":
        sound, none = make_audio(rate // 2, rate, 6), np.zeros(rate // 2, np.float32)
        return {
            "audio that ends in silence": np.concatenate([sound, none]),
            "audio that begins in silence": np.concatenate([none, sound]),
            "audio with silence within": np.concatenate([sound, none, sound]),
        }
    if modality == "video":
        frames, metadata = make_video(4, 112, 112, 6)
        black = np.zeros_like(frames)
        return {
            "a video that ends in black": (np.concatenate([frames, black]), metadata),
            "a video that begins in black": (np.concatenate([black, frames]), metadata),
            "a video with a black lower half": (np.concatenate([frames, black], axis=1), metadata),
        }
    found = {}
    for side in (112, 120, 128):  # of patches of 14 or 16, of 20 or 30, of 32
        for colour, value in (("black", 0), ("white", 255)):
            noise = np.array(make_image(side, side, side))
            plain = np.full_like(noise, value)
            framed = np.pad(noise, ((side // 2,) * 2, (side // 2,) * 2, (0, 0)), constant_values=value)
            found[f"an image of {2 * side} rows with a {colour} lower half"] = np.concatenate([noise, plain])
            found[f"an image of {2 * side} columns with a {colour} left half"] = np.concatenate([plain, noise], axis=1)
            found[f"an image of {side} x {side} in a {colour} frame"] = framed
    return {what: images.fromarray(pixels) for what, pixels in found.items()}


def annotated_image(width: int, height: int) -> Image:
    """Return an image that says its resolution, its colours' profile and, in EXIF, what made it."""
    from PIL import ImageCms

    image = make_image(width, height, 8)
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB"))
    image.info.update(dpi=(300, 300), icc_profile=profile.tobytes())
    image.getexif()[0x010F] = "a camera"
    return image


def wav_file(samples: np.ndarray[Any, Any], rate: int) -> bytes:
    """Return a file of samples `[num_samples]`, integers."""
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setparams((1, samples.itemsize, rate, 0, "NONE", ""))
        writer.writeframes(samples.tobytes())
    return file.getvalue()


def _encoded(image: Image, form: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()
