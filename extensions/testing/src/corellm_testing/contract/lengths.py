"""Rules about lengths: audio and videos up to the longest that the model takes, and audio beyond."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from corellm.config import EngineConfig
from corellm.engine.llm_engine import LLMEngine
from corellm.errors import RequestError
from corellm.frontend.input_processor import InputProcessor, ProcessedPrompt
from corellm_testing.contract.processing import ProcessingRules
from corellm_testing.items import long_audio, make_video
from corellm_testing.quick import slow
from corellm_testing.reference import Reference, token_ids_of
from corellm_testing.rules import guilty_hook
from corellm_testing.subject import Part, Subject, describe, same_output

VIDEO_FRAMES = (255, 257, 600, 1500)
"""Frames of long videos: past 255 frames, and past 255 pairs of frames."""
AUDIO_SECONDS = (3, 41, 330, 656)
"""Seconds of audio that the processor does not cut: past 255 frames of 10 ms, past 4095, 32,767 and 65,535."""
CUT_SECONDS = 256
"""Audio of twice as many seconds or less is tried to find where the processor cuts it."""


class LengthRules(ProcessingRules):
    """Long items."""

    @pytest.fixture(scope="class")
    @classmethod
    def long_subject(cls, subject: Subject, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject | Exception]:
        """The model of a checkpoint for long items, or the error of loading it; the usual one without `LONG`."""
        settings = cls.long_settings()
        if not settings:
            yield subject
            return
        try:  # without its dummies in the encoder, which may take minutes
            path = cls.make_checkpoint(tmp_path_factory.mktemp("long"), **settings)
            engine = LLMEngine(EngineConfig.from_kwargs(model=str(path), dtype="float32"), check_encoders=False)
        except Exception as error:
            yield error
            return
        reference = cls.reference(path)
        yield Subject(path, reference, engine)
        reference.close()
        engine.shutdown()

    @pytest.fixture(scope="class")
    @classmethod
    def longest_audio(cls, long_subject: Subject | Exception) -> int | None:
        """Samples of the longest audio that the processor does not cut; None where it cuts none, or takes none."""
        if isinstance(long_subject, Exception) or "audio" not in long_subject.modalities:
            return None
        text, _ = long_subject.prompt(["What?", ("audio", None)])
        return longest_uncut(long_subject.reference, text, long_subject.sampling_rate)

    @slow()
    def test_items_of_any_length_equal_the_hf_processor(
        self, long_subject: Subject | Exception, longest_audio: int | None
    ) -> None:
        """Audio and videos of more than 255, 65,535 and so on frames or samples become the processor's tensors.

        Up to the longest that the model takes: a lower limit is a fault. `LONG` in `tiny.py` has the arguments of a
        checkpoint that takes longer items than that of all other rules.
        """
        subject = self._loaded(long_subject)
        inputs = _without_bounds(subject)
        for modality in subject.modalities:
            for item in _long_items(subject, modality, longest_audio):
                parts: list[Part] = ["What?", (modality, item)]
                got = self._processed(subject, (modality, item), describe(item), {}, inputs)
                if isinstance(got, RequestError):
                    self.require(
                        not _is_served(subject, parts),
                        guilty_hook(got),
                        expected=f"{describe(item)} is taken, as by transformers",
                        got=f"{type(got).__name__}: {got}",
                        fix="refuse nothing that the model takes: read its limits from the checkpoint",
                    )
                    break  # so are longer ones
                self.same_as_reference(subject, parts, got, self.of_reference(subject, parts, {}), {})
                if len(got.token_ids) <= (subject.context.max_model_len or 0):
                    self.fits_placeholder(subject, got.features, describe(item))

    @slow()
    def test_longer_audio_is_refused_or_cut(self, long_subject: Subject | Exception, longest_audio: int | None) -> None:
        """Audio longer than the processor takes is refused with the longest, or cut as there, as `cut_by` says."""
        subject = self._loaded(long_subject)
        if longest_audio is None:
            return
        rate, inputs, by = subject.sampling_rate, _without_bounds(subject), self.cut_by.get("audio")
        is_cut = by == {} if "audio" in self.cut_by else None
        for count in (longest_audio + rate // 100, 4 * longest_audio):
            audio = long_audio(count, rate)
            what = f"{describe(audio)}, where the processor takes {longest_audio},"
            got = self._processed(subject, ("audio", audio), what, {}, inputs)
            if isinstance(got, RequestError):
                self._names_the_longest(got, what, longest_audio, rate, is_cut=is_cut)
            else:
                self.require(
                    is_cut is not False,
                    "call_hf_processor",
                    expected=f"{what} is refused: cut_by of the contract class names {by}",
                    got="it was accepted",
                    fix="refuse it with a MediaTooLargeError that says how much the model takes, or set cut_by",
                )
                self._is_cut(subject, audio, got, {})
            if by:
                got = self._processed(subject, ("audio", audio), f"{what} with {dict(by)}", by, inputs)
                if isinstance(got, RequestError):
                    self.fail(
                        guilty_hook(got),
                        expected=f"{what} with {dict(by)} is cut, as cut_by of the contract class says",
                        got=got,
                        fix="cut it as the processor does, or set cut_by",
                    )
                self._is_cut(subject, audio, got, by)

    def _loaded(self, subject: Subject | Exception) -> Subject:
        """Return the model of the checkpoint for long items."""
        __tracebackhide__ = True
        with self.expecting(f"a checkpoint with {dict(self.long_settings())} loads"):
            if isinstance(subject, Exception):
                raise subject
        return subject

    def _processed(
        self, subject: Subject, item: tuple[str, Any], what: str, kwargs: Mapping[str, Any], inputs: InputProcessor
    ) -> ProcessedPrompt | RequestError:
        """Return a prompt with one item processed, or the error with which it is refused."""
        __tracebackhide__ = True
        with self.expecting(f"{what} is taken, or refused with a RequestError", hook="call_hf_processor"):
            try:
                return subject.process(*subject.prompt(["What?", item]), kwargs, inputs=inputs)
            except RequestError as error:
                return error

    def _is_cut(self, subject: Subject, audio: Any, got: ProcessedPrompt, kwargs: Mapping[str, Any]) -> None:
        """Require audio that is too long to be what the processor leaves of it."""
        __tracebackhide__ = True
        parts: list[Part] = ["What?", ("audio", audio)]
        self.same_as_reference(subject, parts, got, self.of_reference(subject, parts, kwargs), kwargs)

    def _names_the_longest(
        self, refusal: RequestError, what: str, longest: int, rate: int, *, is_cut: bool | None
    ) -> None:
        """Require a refusal to be right, and to say how much the model takes."""
        __tracebackhide__ = True
        self.require(
            is_cut is not True,
            guilty_hook(refusal),
            expected=f"{what} is cut, as cut_by of the contract class says",
            got=refusal,
            fix="cut it as the processor does, or set cut_by",
        )
        numbers = {float(number.replace(",", "")) for number in re.findall(r"\d[\d,]*(?:\.\d+)?", str(refusal))}
        seconds = f"{longest / rate:g}"
        self.require(
            not numbers.isdisjoint({float(longest), float(seconds)}),
            guilty_hook(refusal),
            expected=f"{what} is refused with a message that says {longest} samples or {seconds} seconds",
            got=refusal,
            fix="say how much the model takes, and how to send more",
        )


def longest_uncut(reference: Reference, text: str, rate: int) -> int | None:
    """Return the samples of the longest audio that a processor does not cut, or None: it cuts none that is tried.

    Cut is what longer audio changes nothing of.

    Args:
        reference: the processor.
        text: of a prompt with one audio item.
        rate: samples per second.
    """

    def output(count: int) -> Mapping[str, Any]:
        try:
            return reference.process(text, {"audio": [long_audio(count, rate)]}, {})
        except Exception:  # too short or too long for the processor: it is not cut
            return {"count": count}

    whole, last = rate, output(rate)
    while not same_output(doubled := output(2 * whole), last):
        if whole >= CUT_SECONDS * rate:
            return None
        whole, last = 2 * whole, doubled
    shorter = whole // 2 if whole > rate else 0
    while whole - shorter > 1:
        middle = (shorter + whole) // 2
        shorter, whole = (shorter, middle) if same_output(output(middle), last) else (middle, whole)
    return whole


def _without_bounds(subject: Subject) -> InputProcessor:
    """Return the engine's input processor with bounds of the operator's that no item here reaches."""
    return subject.fresh(max_audio_seconds=3600.0, max_video_frames=10_000)


def _long_items(subject: Subject, modality: str, longest_audio: int | None) -> Iterator[Any]:
    """Yield long items, the longest that the model takes last where the processor says which it is."""
    if modality == "video":
        for count in VIDEO_FRAMES:
            yield make_video(count, 20, 20, count, fps=2.0)
    elif modality == "audio":
        rate = subject.sampling_rate
        counts = {seconds * rate + 81 for seconds in AUDIO_SECONDS}
        if longest_audio is not None:
            counts = {3 * rate + 81, longest_audio * 2 // 3 + 81}
            counts |= {longest_audio - less for less in (rate // 100, 1, 0)}
        for count in sorted(counts):
            if longest_audio is None or count <= longest_audio:
                yield long_audio(count, rate)


def _is_served(subject: Subject, parts: Sequence[Part]) -> bool:
    """Whether transformers' model takes a prompt, and a sequence is long enough for it."""
    text, media = subject.prompt(parts)
    try:
        tokens = token_ids_of(subject.reference.process(text, media, {}))
        if len(tokens) >= (subject.context.max_model_len or 0):
            return False
        subject.reference.generate(text, media, {}, 1)
    except Exception:  # whatever the processor or the model raises: it does not take the item
        return False
    return True
