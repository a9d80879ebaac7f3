"""The largest items that fit a prompt, for counts as processors make them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from corellm_transformers.largest import largest_image, largest_video, longest_audio

RATE = 16_000


def frames(samples: int) -> int:
    """Fifty tokens a second."""
    return samples // 320 - 1


def uneven(samples: int) -> int:
    """Thirteen tokens a second, and two more around every three seconds."""
    return 13 * samples // RATE + 2 * (samples // (3 * RATE))


def cut(samples: int) -> int:
    """As `frames`, of half a minute at most."""
    return frames(min(samples, 30 * RATE))


def padded(samples: int) -> int:
    """A hundred tokens for every half minute, also for one that has only begun."""
    return 100 * -(-samples // (30 * RATE))


def short(samples: int) -> int | None:
    """As `frames`, of audio that is not refused for its length."""
    return frames(samples) if samples <= 41 * RATE else None


@pytest.mark.parametrize("seq_len", [60, 119, 1024, 4096, 70_000])
@pytest.mark.parametrize("count", [frames, uneven, cut, padded, short])
def test_no_audio_that_fits_is_larger(count: Callable[[int], int | None], seq_len: int) -> None:
    """Memory is planned for the most tokens of all lengths that fit, not of a few, and found in a few tries."""
    tries = list[int]()

    def counted(samples: int) -> int | None:
        tries.append(samples)
        return count(samples)

    found = count(longest_audio(counted, RATE, seq_len))
    all_lengths = [count(samples) or 0 for samples in range(RATE, 1800 * RATE + 1, RATE // 100)]
    assert found == max((tokens for tokens in all_lengths if tokens <= seq_len), default=count(RATE))
    assert len(tries) <= 45


def test_an_audio_in_proportion_is_found_at_once() -> None:
    """Long audio takes long to process."""
    tries = list[int]()

    def counted(samples: int) -> int:
        tries.append(samples)
        return frames(samples)

    assert frames(longest_audio(counted, RATE, 40_000)) == 40_000
    assert len(tries) <= 13


def patches(width: int, height: int) -> int:
    """A token for each 28 x 28 pixels, and one for each row."""
    return max(1, round(height / 28)) * (max(1, round(width / 28)) + 1)


def not_too_narrow(width: int, height: int) -> int | None:
    """As `patches`, of images whose sides differ less than two hundredfold."""
    return patches(width, height) if max(width, height) < 200 * min(width, height) else None


@pytest.mark.parametrize("seq_len", [64, 119, 170, 997, 1024, 4096])
@pytest.mark.parametrize("count", [patches, not_too_narrow])
def test_an_image_fills_the_prompt(count: Callable[[int, int], int | None], seq_len: int) -> None:
    """Larger images than fit a prompt exist, so the largest that fits fills it, or nearly."""
    found = count(*largest_image(count, seq_len, {}))
    assert found is not None
    assert seq_len - (seq_len == 997) <= found <= seq_len, "997 is a prime: it has no two sides"


def test_an_image_keeps_to_the_bounds() -> None:
    """The operator's bounds count where the prompt would hold more."""
    width, height = largest_image(patches, 4096, {"width": 280, "height": 140})
    assert (width <= 280, height <= 140, patches(width, height)) == (True, True, patches(280, 140))
    width, height = largest_image(patches, 170, {"width": 300})
    assert (width <= 300, patches(width, height)) == (True, 170)


def steps(frames: int, width: int, height: int) -> int:
    """The patches of each two frames, and as many marks as there are steps."""
    return -(-frames // 2) * (patches(width, height) + 2)


def of_one_size(frames: int, width: int, height: int) -> int:
    """Ten tokens a frame, which is scaled to one size."""
    return 10 * frames


def bounded(frames: int, width: int, height: int) -> int:
    """As `steps`, with smaller frames where all of them would have more than 5,000 patches."""
    return min(steps(frames, width, height), 5_000 + frames)


@pytest.mark.parametrize("seq_len", [64, 170, 1024, 4096, 32_768])
@pytest.mark.parametrize("count", [steps, of_one_size, bounded])
def test_a_video_fills_the_prompt_or_has_all_frames(count: Callable[[int, int, int], int], seq_len: int) -> None:
    """Another frame does not fit, or the processor takes no more."""
    frames, width, height = largest_video(count, seq_len, {"num_frames": 768})
    assert count(frames, width, height) <= seq_len
    room = count(frames + 1, width, height) > seq_len or frames == 768
    assert room or (frames + 1) * width * height > 2**26 or count(frames + 2, width, height) > seq_len


def test_a_video_keeps_to_the_bounds() -> None:
    """The operator's bounds count where the prompt would hold more."""
    found = largest_video(steps, 30_000, {"num_frames": 12, "width": 280, "height": 140})
    assert found == (12, 280, 140)
