"""Mistakes with rates of audio, and with times of videos' frames."""

from __future__ import annotations

from tests.mutants.mutant import AUDIO, QWEN2_5, QWEN3

MUTANTS = (
    # --- rates --------------------------------------------------------------------------------------------------------
    AUDIO.given(
        "sampling rates are ignored",
        "test_audio_of_any_rate_becomes_the_same",
        "get_data_parser",
        """
        @hookimpl
        def get_data_parser(self):
            from corellm.multimodal import DataParser

            class Parser(DataParser):
                def load_audio(self, value):
                    return super().load_audio(value[0] if isinstance(value, tuple) else value)

            rate = self.context.hf_processor.feature_extractor.sampling_rate
            return Parser(hidden_size=self.context.hf_config.text_config.hidden_size, sampling_rate=rate)
        """,
    ),
    AUDIO.given(
        "samples are left out without a filter",
        "test_audio_of_any_rate_becomes_the_same",
        "get_data_parser",
        """
        @hookimpl
        def get_data_parser(self):
            import numpy as np

            from corellm.multimodal import DataParser

            class Parser(DataParser):
                def load_audio(self, value):
                    if isinstance(value, tuple) and value[1] > rate:
                        samples, given = value
                        value = samples[np.arange(len(samples) * rate // given) * given // rate], rate
                    return super().load_audio(value)

            rate = self.context.hf_processor.feature_extractor.sampling_rate
            return Parser(hidden_size=self.context.hf_config.text_config.hidden_size, sampling_rate=rate)
        """,
    ),
    AUDIO.given(
        "samples are drawn between others along straight lines",
        "test_audio_of_any_rate_becomes_the_same",
        "get_data_parser",
        """
        @hookimpl
        def get_data_parser(self):
            import numpy as np

            from corellm.multimodal import DataParser

            class Parser(DataParser):
                def load_audio(self, value):
                    if isinstance(value, tuple) and value[1] < rate:
                        samples, given = value
                        at = np.arange(len(samples) * rate // given) * given / rate
                        value = np.interp(at, np.arange(len(samples)), samples), rate
                    return super().load_audio(value)

            rate = self.context.hf_processor.feature_extractor.sampling_rate
            return Parser(hidden_size=self.context.hf_config.text_config.hidden_size, sampling_rate=rate)
        """,
    ),
    AUDIO.given(
        "audio of another rate is resampled twice",
        "test_audio_of_any_rate_becomes_the_same",
        "get_data_parser",
        """
        @hookimpl
        def get_data_parser(self):
            from corellm.multimodal import DataParser

            class Parser(DataParser):
                def load_audio(self, value):
                    samples = super().load_audio(value)
                    return super().load_audio((samples, value[1])) if isinstance(value, tuple) else samples

            rate = self.context.hf_processor.feature_extractor.sampling_rate
            return Parser(hidden_size=self.context.hf_config.text_config.hidden_size, sampling_rate=rate)
        """,
    ),
    AUDIO.given(
        "audio without a rate is taken to be at the model's",
        "test_audio_of_any_rate_becomes_the_same",
        "get_data_parser",
        """
        @hookimpl
        def get_data_parser(self):
            from corellm.multimodal import DataParser

            class Parser(DataParser):
                def load_audio(self, value):
                    if isinstance(value, tuple):
                        value = value[0], value[1] or rate
                    return super().load_audio(value)

            rate = self.context.hf_processor.feature_extractor.sampling_rate
            return Parser(hidden_size=self.context.hf_config.text_config.hidden_size, sampling_rate=rate)
        """,
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
    QWEN2_5.given(
        "the parser forgets which frames of a video came",
        "test_times_of_videos_equal_the_hf_processor",
        "get_data_parser",
        """
        @hookimpl
        def get_data_parser(self):
            from corellm.multimodal import DataParser

            class Parser(DataParser):
                def load_video(self, value):
                    if isinstance(value, tuple):
                        forgotten = ("frames_indices", "total_num_frames")
                        value = value[0], {key: known for key, known in value[1].items() if key not in forgotten}
                    return super().load_video(value)

            return Parser()
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
