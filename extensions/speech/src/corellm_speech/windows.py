"""Audio read by the times that a model tells: each window begins where the last whole segment of the one before ended.

This is the sequential algorithm of Whisper's paper (section 3.8), as transformers' `generate` has it: segments end with
pairs of times, what comes behind the last pair is read again, and the text of a window is not told to the next one.
Knows tokens of times; what a window is, and how text is asked for, is the adapter's to say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from corellm.hookspecs import SpokenTimes
from corellm.outputs import CompletionOutput, RequestOutput
from corellm.sampling_params import LogitsProcessorParams, SamplingParams
from corellm_speech.reading import Asked, Piece
from corellm_speech.segments import Segment, Transcript

if TYPE_CHECKING:
    from numpy.typing import NDArray


class WindowedAudio:
    """A transcription with times; a `corellm_speech.reading.Reading`.

    Args:
        times: of the model's family.
        samples: of the audio.
        seconds: its length.
        asked: what is asked for.
        tokenizer: the model's.

    Raises:
        RequestError: the model cannot be told what is asked for.
    """

    def __init__(
        self, times: SpokenTimes, samples: NDArray[np.float32], seconds: float, asked: Asked, tokenizer: Any
    ) -> None:
        self._times, self._seconds, self._asked, self._tokenizer = times, seconds, asked, tokenizer
        self._windows, self._frame = times.windows(samples), 0
        self._prompt = self._prompt_with(None)
        self._step = times.frames_per_step * times.seconds_per_frame
        rules = {name: getattr(times, name) for name in ("zero", "without", "end", "most_first")}
        self._params = replace(
            asked.params, n=1, stop=(), detokenize=False, logprobs=0,
            logits_processors=[LogitsProcessorParams("speech-times", rules)],
        )  # fmt: skip
        self.segments: list[Segment] = []
        self.piece: Piece | None = self._next()

    def _prompt_with(self, heard: int | None) -> Sequence[int] | None:
        asked = self._asked
        return self._times.prompt(asked.language, asked.translate, asked.context, heard)

    @property
    def language(self) -> str | None:
        """That is spoken, or in which the text was asked for."""
        named = (self._times.languages[token] for token in self._prompt or () if token in self._times.languages)
        return next(named, None)

    def _next(self) -> Piece | None:
        """Return the request for the next window, or before the first one for its language."""
        if self._frame >= self._windows.num_frames:
            return None
        item, kwargs = self._windows.at(self._frame)
        if self._prompt is None:
            return Piece(item, (), SamplingParams(temperature=0, max_tokens=1, detokenize=False), kwargs)
        return Piece(item, self._prompt, self._params, kwargs)

    def take(self, output: RequestOutput) -> str:
        """Take in the output of `piece`."""
        completion, new = output.outputs[0], list[Segment]()
        if self._prompt is None:
            self._prompt = self._prompt_with(completion.token_ids[0])
            assert self._prompt is not None
        else:
            new = self._segments_of(completion)
            self.segments += new
        self.piece = self._next()
        return "".join(segment.text for segment in new)

    def transcript(self) -> Transcript:
        """Return what is said."""
        text = "".join(segment.text for segment in self.segments)
        tokens = [token for segment in self.segments for token in segment.token_ids]
        return Transcript(text, tokens, self._seconds, self.language, self.segments)

    def _segments_of(self, completion: CompletionOutput) -> list[Segment]:
        """Return the segments of a window, and go on to where the next one begins."""
        zero, tokens = self._times.zero, list(completion.token_ids)
        mean = (completion.cumulative_logprob or 0.0) / max(1, len(tokens))
        if tokens and tokens[-1] == self._times.end:
            tokens.pop()
        frames = min(self._windows.num_frames - self._frame, self._times.window_frames)
        begun = self._frame * self._step / self._times.frames_per_step

        def segment(some: list[int], first: int, last: int) -> Segment:
            text = self._tokenizer.decode([token for token in some if token < zero], skip_special_tokens=True)
            start, end = begun + first * self._step, begun + last * self._step
            return Segment(start, end, text, some, begun, mean)

        is_time = [token >= zero for token in tokens]
        borders = [i + 1 for i in range(len(tokens) - 1) if is_time[i] and is_time[i + 1]]
        if not borders:
            self._frame += frames
            last = next((token for token in reversed(tokens) if token >= zero), zero)
            # in float32, as `generate` has it: for some odd numbers it is a step less than in exact arithmetic
            whole = np.float32(frames) * np.float32(self._times.seconds_per_frame) / np.float32(self._step)
            end = last - zero or int(whole)
            return [segment(tokens, 0, end)]
        ends_with_one = is_time[-2:] == [False, True]
        if ends_with_one:
            borders.append(len(tokens))
            self._frame += frames
        else:  # what is behind the last pair is read again
            self._frame += (tokens[borders[-1] - 1] - zero) * self._times.frames_per_step
        found = []
        for start, end in zip([0, *borders], borders, strict=False):
            found.append(segment(tokens[start:end], tokens[start] - zero, tokens[end - 1] - zero))
        if not ends_with_one:  # as `generate` has it, the beginning of what is read again is the last segment's
            end = borders[-1]
            found[-1] = replace(found[-1], token_ids=[*found[-1].token_ids, tokens[end]])
        return found
