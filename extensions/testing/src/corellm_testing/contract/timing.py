"""Rules about time: rates of audio, rates of videos and when their frames were taken."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from corellm.errors import MediaError
from corellm.media.type_checks import is_tensor
from corellm.media.video import Video
from corellm.multimodal.inputs import MultiModalFeature
from corellm_testing.contract.processing import ProcessingRules, reference_output
from corellm_testing.items import make_tones, make_video, timed_videos, wav_file
from corellm_testing.reference import token_ids_of
from corellm_testing.subject import Part, Subject

RATES = (8_000, 11_025, 16_000, 22_050, 44_100, 48_000, 96_000)
"""Samples per second, of telephones to studios."""
NOISE = 0.003
"""What a resampler may add, as a part of the audio: good ones add a thousandth of this."""
NO_RATES = (0, -2, math.nan)
"""Rates of nothing."""
_READ_BY_CORE = "let corellm.multimodal.DataParser read media; for audio, give it the model's sampling_rate"


class TimingRules(ProcessingRules):
    """Rates and times."""

    def test_audio_of_any_rate_becomes_the_same(self, subject: Subject) -> None:
        """Audio of any sampling rate, as samples and as a file, becomes the tensors of the same audio at the model's.

        The oracle resamples nothing: sines are computed at both rates, and those that the model's cannot hold left out.
        Values may differ as by a little noise. Audio without a rate, or of an impossible one, is refused.
        """
        if "audio" not in subject.modalities:
            return
        import numpy as np

        own = subject.sampling_rate
        for rate in sorted({*RATES, own}):
            given, usual = make_tones(rate, own)
            forms = {"samples": (given, rate), "a WAV file": wav_file((given * 32767).astype(np.int16), rate)}
            for form, item in forms.items():
                what = f"audio of {rate} samples per second, as {form},"
                with self.expecting(f"{what} is processed", hook="get_data_parser", fix=_READ_BY_CORE):
                    (feature,) = subject.features("audio", item)
                same = [usual, np.append(usual, usual[:1])]
                near = any(self._is_near(subject, feature, one) for one in same)
                is_read = near or self._is_read(subject, item, same)
                self.require(
                    near,
                    "call_hf_processor" if is_read else "get_data_parser",
                    expected=f"{what} becomes the tensors of the same audio at {own}",
                    got=f"others, of {feature.placeholder.length} tokens",
                    fix="take the samples as the parser gives them" if is_read else _READ_BY_CORE,
                )
        for wrong in (None, *NO_RATES):
            self._is_refused(subject, "audio", (usual, wrong), f"audio of {wrong} samples per second")

    def _is_refused(self, subject: Subject, modality: str, item: Any, what: str) -> None:
        """Require an item of an impossible rate to be refused by name."""
        __tracebackhide__ = True
        with self.refusing("get_data_parser", what, MediaError, words=f"{modality} 0", fix=_READ_BY_CORE):
            subject.features(modality, item)

    def _is_read(self, subject: Subject, item: Any, same: Sequence[Any]) -> bool:
        """Whether the parser reads one of `same` of an item, up to a little noise."""
        import numpy as np

        read = np.asarray(subject.processor.parse({"audio": [item]})["audio"].get(0), np.float64)
        return any(read.shape == one.shape and (read - one).std() <= NOISE * one.std() for one in same)

    def _is_near(self, subject: Subject, feature: MultiModalFeature, audio: Any) -> bool:
        """Whether an item's tensors are those of audio at the model's rate, up to a little noise."""
        import numpy as np

        noise = NOISE * audio.std() * np.random.default_rng(0).standard_normal((3, len(audio)))
        with self.expecting("audio is processed"):
            usual, *noisy = (subject.features("audio", one)[0] for one in (audio, *(audio + noise).astype(audio.dtype)))
        return (
            feature.placeholder.length == usual.placeholder.length
            and set(feature.data) == set(usual.data)
            and all(
                _are_near(feature.data[name].data, elem.data, [one.data[name].data for one in noisy])
                for name, elem in usual.data.items()
            )
        )

    def test_times_of_videos_equal_the_hf_processor(self, subject: Subject) -> None:
        """Videos of uneven and late times, of odd and of unknown rates, become the processor's, or are refused.

        Those of an impossible rate are refused.
        """
        if "video" not in subject.modalities:
            return
        for what, item in timed_videos().items():
            if not self.taken(subject, "video", item, what):
                continue
            parts: list[Part] = ["What?", ("video", item)]
            self._keeps_metadata(subject, what, item)
            want = reference_output(subject, parts, {})
            if want is None:
                continue
            with self.expecting(f"{what} is processed"):
                got = subject.process(*subject.prompt(parts))
            self.require(
                got.token_ids == token_ids_of(want),
                "call_hf_processor or get_prompt_updates",
                expected=f"for {what}: {token_ids_of(want)}",
                got=got.token_ids,
                fix="compute times as the processor does: of the frames' own indices, by the video's rate",
            )
            self.same_as_reference(subject, parts, got, want, {})
        for wrong in NO_RATES:
            frames, _ = make_video(2, 60, 50)
            self._is_refused(subject, "video", (frames, {"fps": wrong}), f"a video of {wrong} frames per second")

    def _keeps_metadata(self, subject: Subject, what: str, item: Any) -> None:
        """Require the parser to hand on what the caller says of a video."""
        __tracebackhide__ = True
        with self.expecting(f"{what} is read", hook="get_data_parser", fix=_READ_BY_CORE):
            video = subject.processor.parse({"video": [item]})["video"].get(0)
        if not isinstance(video, Video):  # a form of the adapter's own
            return
        known = {name: getattr(video.metadata, name) for name in item[1]}
        self.require(
            {name: list(value) if isinstance(value, tuple) else value for name, value in known.items()} == item[1],
            "get_data_parser",
            expected=f"of {what}: {item[1]}",
            got=known,
            fix=_READ_BY_CORE,
        )


def _are_near(ours: Any, usual: Any, noisy: Sequence[Any]) -> bool:
    """Whether values are the usual ones, floating-point ones up to what noise changes of each."""
    if isinstance(usual, list):
        return (
            isinstance(ours, list)
            and len(ours) == len(usual)
            and all(_are_near(*three) for three in zip(ours, usual, zip(*noisy, strict=True), strict=True))
        )
    if not is_tensor(usual):
        return bool(ours == usual)
    if not is_tensor(ours) or (ours.shape, ours.dtype) != (usual.shape, usual.dtype):
        return False
    if not usual.is_floating_point():
        return bool((ours == usual).all())
    allowed = 3 * sum((one - usual).abs() for one in noisy) + 1e-4 * usual.abs().max()
    return float(((ours - usual).abs() > allowed).double().mean()) < 0.002
