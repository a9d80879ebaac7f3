"""Audio read by the times that a model tells: each window begins where the last whole segment of the one before ended.

This is the sequential algorithm of Whisper's paper (section 3.8), as transformers' `generate` has it: segments end with
pairs of times, and what comes behind the last pair is read again. Knows tokens of times; what a window is, and how text
is asked for, is the adapter's to say, and which texts are good enough is in `retries`.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np

from corellm.errors import InvalidParameterError
from corellm.hookspecs import SpokenTimes
from corellm.outputs import CompletionOutput, RequestOutput
from corellm.sampling_params import LogitsProcessorParams, SamplingParams
from corellm_speech.reading import Asked, Piece
from corellm_speech.segments import Segment, Transcript, Word
from corellm_speech.words import first_steps, words_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from corellm.serving import ProcessedPrompt
    from corellm_speech.second_look import EngineCall, Seen

_ROUNDING = 1e-6
"""Frames that a length in seconds may be wrong by."""


class WindowedAudio:
    """A transcription with times; a `corellm_speech.reading.Reading`.

    Args:
        times: of the model's family.
        samples: of the audio.
        seconds: its length.
        asked: what is asked for.
        tokenizer: the model's.
        vocab_size: of the model.

    Raises:
        RequestError: the model cannot be told what is asked for.
        InvalidParameterError: the checkpoint does not say what that takes.
    """

    def __init__(
        self,
        times: SpokenTimes,
        samples: NDArray[np.float32],
        seconds: float,
        asked: Asked,
        tokenizer: Any,
        vocab_size: int,
    ) -> None:
        self._times, self._seconds, self._asked = times, seconds, asked
        self._tokenizer, self._vocab_size = tokenizer, vocab_size
        self._retries = asked.retries.completed(times.stated)
        self._check()
        self._windows, self._frame = times.windows(samples), 0
        self._heard_frames = min(self._windows.num_frames, ceil(seconds / times.seconds_per_frame - _ROUNDING))
        self._step = times.frames_per_step * times.seconds_per_frame
        rules = {name: getattr(times, name) for name in ("zero", "without", "end", "most_first")}
        self._params = replace(
            asked.params, n=1, stop=(), detokenize=False, logprobs=0,
            logits_processors=[LogitsProcessorParams("speech-times", rules)],
        )  # fmt: skip
        self._temperatures, self._try = self._retries.temperatures or (asked.params.temperature,), 0
        self._goes_on = bool(self._retries.condition_on_prev_tokens)
        self._tell(None)
        self._completion = CompletionOutput(0)
        self.segments: list[Segment] = []
        self.call: EngineCall | None = None
        self.piece: Piece | None = self._next()

    def _check(self) -> None:
        """Refuse what the checkpoint does not say how to do."""
        if self._asked.words and not self._times.heads:
            raise InvalidParameterError(
                "word_timestamps: the checkpoint's generation_config.json has no alignment_heads of this decoder, by "
                "which words are found in the audio; leave it out, or add those of the published checkpoint",
                param="word_timestamps",
            )
        if self._retries.condition_on_prev_tokens and self._times.earlier is None:
            raise InvalidParameterError(
                "condition_on_prev_tokens: the checkpoint's generation_config.json has no prev_sot_token_id, which "
                "comes before earlier text; leave it out",
                param="condition_on_prev_tokens",
            )

    def _tell(self, heard: int | None) -> None:
        """Find what each window is told, once the language is known."""
        asked, prompt = self._asked, self._times.prompt
        self._opening = prompt(asked.language, asked.translate, "", heard)
        told = prompt(asked.language, asked.translate, asked.context, heard) or ()
        self._context = list(told[: len(told) - len(self._opening or ())])

    @property
    def language(self) -> str | None:
        """That is spoken, or in which the text was asked for."""
        named = (self._times.languages[token] for token in self._opening or () if token in self._times.languages)
        return next(named, None)

    def _next(self) -> Piece | None:
        """Return the request for the next window, or before the first one for its language."""
        if self._frame >= self._windows.num_frames:
            return None
        item, kwargs = self._windows.at(self._frame)
        if self._opening is None:
            return Piece(item, (), SamplingParams(temperature=0, max_tokens=1, detokenize=False), kwargs)
        params = replace(self._params, temperature=self._temperatures[self._try])
        return Piece(item, [*self._before(), *self._opening], params, kwargs)

    def _before(self) -> list[int]:
        """Return what the next window is told of what was said before."""
        earlier = [_without_doubled_end(segment.token_ids, self._times.zero) for segment in self.segments]
        if not (self._goes_on and (earlier or self._context)):
            return self._context
        assert self._times.earlier is not None
        token, most = self._times.earlier
        return [token, *[one for tokens in (self._context[1:], *earlier) for one in tokens][-most:]]

    def take(self, prompt: ProcessedPrompt, output: RequestOutput) -> str:
        """Take in the output of `piece`."""
        if self._opening is None:
            self._tell(output.outputs[0].token_ids[0])
            assert self._opening is not None
            self.piece = self._next()
            return ""
        self._completion, words = output.outputs[0], self._asked.words
        if not (words or self._retries.need_probabilities):
            return self._judge(None)
        from corellm_speech.second_look import call_for

        heard = max(0, self._heard_frames - self._frame) // self._times.frames_per_step if words else 0
        start = len(prompt.own_token_ids) - len(self._opening)
        self.call = call_for(self._times, prompt, self._completion.token_ids, start=start, num_steps=heard)
        return ""

    def answer(self, result: Any) -> str:
        """Take in the result of `call`."""
        from corellm_speech.second_look import Seen

        self.call = None
        return self._judge(Seen.of(result, len(self._completion.token_ids)))

    def _judge(self, seen: Seen | None) -> str:
        """Take the window's text if it is good enough, or the last that is tried; returns it."""
        completion, found = self._completion, (0.0, 0.0) if seen is None else (seen.mean_logprob, seen.no_speech)
        again, is_silent = self._retries.judge(completion.token_ids, self._vocab_size, *found)
        if again and self._try + 1 < len(self._temperatures):
            self._try += 1
            self.piece = self._next()
            return ""
        self._goes_on = self._retries.goes_on_from(self._temperatures[self._try])
        new = list[Segment]()
        if is_silent:
            self._frame += self._own_frames
        else:
            new = self._segments_of(completion, seen)
            self.segments += new
        self._try = 0
        self.piece = self._next()
        return "".join(segment.text for segment in new)

    def transcript(self) -> Transcript:
        """Return what is said."""
        text = "".join(segment.text for segment in self.segments)
        tokens = [token for segment in self.segments for token in segment.token_ids]
        words: list[Word] = []
        if self._asked.words:
            words = words_of(self.segments, self._is_text, self._tokenizer, self.language)
        return Transcript(text, tokens, self._seconds, self.language, self.segments, words)

    def _is_text(self, token: int) -> bool:
        """Whether a token is in the text of a segment."""
        added = self._tokenizer.added_tokens_decoder.get(token)
        return token < self._times.zero and not (added is not None and added.special)

    @property
    def _own_frames(self) -> int:
        """Frames of the window that are of the audio."""
        return min(self._windows.num_frames - self._frame, self._times.window_frames)

    def _times_of(self, seen: Seen | None, begun: float) -> list[float]:
        """Return until when each token of a window was heard; of the last one, until when the one before was.

        Sums are in float32, as `generate` has them.
        """
        if seen is None or not self._asked.words:
            return []
        steps = first_steps(seen.rows)
        times = [np.float32(step * self._step) + np.float32(begun) for step in [*steps, *(steps[-1:] or [0])]]
        return [float(time) for time in times]

    def _segments_of(self, completion: CompletionOutput, seen: Seen | None) -> list[Segment]:
        """Return the segments of a window, and go on to where the next one begins."""
        zero, tokens = self._times.zero, list(completion.token_ids)
        mean = (completion.cumulative_logprob or 0.0) / max(1, len(tokens)) if seen is None else seen.mean_logprob
        temperature, silence = self._temperatures[self._try], None if seen is None else seen.no_speech
        if tokens and tokens[-1] == self._times.end:
            tokens.pop()
        frames, begun = self._own_frames, self._frame * self._step / self._times.frames_per_step
        heard = self._times_of(seen, begun)

        def segment(place: slice, first: int, last: int) -> Segment:
            some = tokens[place]
            text = self._tokenizer.decode([token for token in some if token < zero], skip_special_tokens=True)
            start, end = begun + first * self._step, begun + last * self._step
            return Segment(start, end, text, some, begun, mean, temperature, silence, heard[place])

        is_time = [token >= zero for token in tokens]
        borders = [i + 1 for i in range(len(tokens) - 1) if is_time[i] and is_time[i + 1]]
        if not borders:
            self._frame += frames
            last = next((token for token in reversed(tokens) if token >= zero), zero)
            # in float32, as `generate` has it: for some odd numbers it is a step less than in exact arithmetic
            whole = np.float32(frames) * np.float32(self._times.seconds_per_frame) / np.float32(self._step)
            end = last - zero or int(whole)
            return [segment(slice(len(tokens)), 0, end)]
        ends_with_one = is_time[-2:] == [False, True]
        if ends_with_one:
            borders.append(len(tokens))
            self._frame += frames
        else:  # what is behind the last pair is read again
            self._frame += (tokens[borders[-1] - 1] - zero) * self._times.frames_per_step
        found = []
        for start, end in zip([0, *borders], borders, strict=False):
            found.append(segment(slice(start, end), tokens[start] - zero, tokens[end - 1] - zero))
        if not ends_with_one:  # as `generate` has it, the beginning of what is read again is the last segment's
            latest, next_one = found[-1], slice(borders[-1], borders[-1] + 1)
            found[-1] = replace(
                latest,
                token_ids=latest.token_ids + tokens[next_one],
                token_times=latest.token_times + heard[next_one],
            )
        return found


def _without_doubled_end(tokens: list[int], zero: int) -> list[int]:
    """Return a segment's tokens with one time at their end."""
    return tokens[:-1] if len(tokens) > 2 and tokens[-2] >= zero else tokens
