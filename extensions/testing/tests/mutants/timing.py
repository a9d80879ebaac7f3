"""Mistakes with rates of audio, and with times of videos' frames."""

from __future__ import annotations

from textwrap import dedent, indent

from extensions.testing.tests.mutants.mutant import AUDIO, QWEN2, QWEN2_5, QWEN3, Mutant

_LOAD = """
def load_audio(self, value):
    import numpy as np

    rate = self.sampling_rate()
"""


def _reading(wrong: str, body: str) -> Mutant:
    """Return a mutant whose parser reads audio by `body`, of `value` and the model's `rate`."""
    method = _LOAD + indent(dedent(body).strip("\n"), " " * 4)
    return AUDIO.parsing(wrong, "test_audio_of_any_rate_becomes_the_same", "get_data_parser", method)


MUTANTS = (
    # --- rates --------------------------------------------------------------------------------------------------------
    _reading(
        "sampling rates are ignored",
        """
        return super().load_audio(value[0] if isinstance(value, tuple) else value)
        """,
    ),
    _reading(
        "samples are left out without a filter",
        """
        if isinstance(value, tuple) and value[1] > rate:
            samples, given = value
            value = samples[np.arange(len(samples) * rate // given) * given // rate], rate
        return super().load_audio(value)
        """,
    ),
    _reading(
        "samples are drawn between others along straight lines",
        """
        if isinstance(value, tuple) and value[1] < rate:
            samples, given = value
            at = np.arange(len(samples) * rate // given) * given / rate
            value = np.interp(at, np.arange(len(samples)), samples), rate
        return super().load_audio(value)
        """,
    ),
    _reading(
        "audio of another rate is resampled twice",
        """
        samples = super().load_audio(value)
        return super().load_audio((samples, value[1])) if isinstance(value, tuple) else samples
        """,
    ),
    _reading(
        "audio without a rate is taken to be at the model's",
        """
        if isinstance(value, tuple):
            value = value[0], value[1] or rate
        return super().load_audio(value)
        """,
    ),
    QWEN2.of("video_processor.py").edited(
        "rates are rounded to whole frames a second",
        "test_times_of_videos_equal_the_hf_processor",
        ("call_hf_processor", "get_prompt_updates", "register_processor"),
        old="count = math.floor(min(max(total / fps * settings.fps",
        new="count = math.floor(min(max(total / max(1, round(fps)) * settings.fps",
    ),
    AUDIO.edited(
        "silence at the end is trimmed",
        "test_audio_of_any_rate_becomes_the_same",
        "call_hf_processor",
        old='            mm_data["audio"], sampling_rate=rate,',
        new="            [a[: max(len(a) // 2, int(a.nonzero()[0].max(initial=0)) + 1)] for a in mm_data"
        '["audio"]], sampling_rate=rate,',
    ),
    # --- times --------------------------------------------------------------------------------------------------------
    QWEN3.of("video_processor.py").edited(
        "frames are numbered anew in a sample",
        "test_times_of_videos_equal_the_hf_processor",
        "call_hf_processor",
        old="    source = metadata.frames_indices or range(video.num_frames)\n",
        new="    source = range(video.num_frames)\n",
    ),
    QWEN3.of("video_processor.py").edited(
        "frames are numbered in 16 bits",
        "test_times_of_videos_equal_the_hf_processor",
        "call_hf_processor",
        old="    source = metadata.frames_indices or range(video.num_frames)\n",
        new="    source = np.array(metadata.frames_indices or range(video.num_frames)).astype(np.uint16).tolist()\n",
    ),
    QWEN2_5.of("video_processor.py").edited(
        "the rate of a sample is the video's",
        "test_times_of_videos_equal_the_hf_processor",
        "call_hf_processor",
        old="len(indices) / metadata.total_num_frames * metadata.fps",
        new="len(indices) / video.num_frames * metadata.fps",
    ),
    QWEN2_5.of("video_processor.py").edited(
        "another rate is taken where none is known",
        "test_times_of_videos_equal_the_hf_processor",
        "call_hf_processor",
        old="UNKNOWN_FPS = 24\n",
        new="UNKNOWN_FPS = 30\n",
    ),
    QWEN2_5.parsing(
        "the parser forgets which frames of a video came",
        "test_times_of_videos_equal_the_hf_processor",
        "get_data_parser",
        """
        def load_video(self, value):
            if isinstance(value, tuple):
                forgotten = ("frames_indices", "total_num_frames")
                value = value[0], {key: known for key, known in value[1].items() if key not in forgotten}
            return super().load_video(value)
        """,
    ),
    QWEN2_5.edited(
        "no position is beyond the model's longest context",
        "test_times_of_videos_reach_the_answers",
        "get_rope_positions",
        old="        return positions[:, 0], offset\n",
        new="        return positions[:, 0].clamp(max=4095), offset\n",
    ),
)
