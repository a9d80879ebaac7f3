"""Sampling parameters of other engines: accepted with a neutral value, refused with any other.

Knows what to use instead of each; corellm's own parameters are in `sampling_params`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from corellm.absent.table import Absent, check_absent

_BEAMS = "it belongs to beam search, which is not there yet"
_STRUCTURE = "structured output is not there yet; allowed_token_ids limits the vocabulary"

ABSENT_SAMPLING = {
    "best_of": Absent(
        (None, 1), "generate n completions with logprobs, and take the one of the best cumulative_logprob"
    ),
    "early_stopping": Absent((False, None), _BEAMS),
    "extra_args": Absent((None, {}), "no sampler here takes any"),
    "flat_logprobs": Absent((False, None), "log-probabilities come as one dict per position"),
    "guided_decoding": Absent((None,), _STRUCTURE),
    "length_penalty": Absent((1.0, None), _BEAMS),
    "logits_processors": Absent(
        (None, [], ()), "use logit_bias, allowed_token_ids or bad_words, or an extension's register_sampling"
    ),
    "logprob_token_ids": Absent((None,), "use logprobs=-1, and look the tokens up"),
    "prompt_logprob_start": Absent((None, 0), "prompt_logprobs are of the whole prompt"),
    "prompt_logprob_token_ids": Absent((None,), "use prompt_logprobs=-1, and look the tokens up"),
    "repetition_detection": Absent((None,), "use repetition_penalty"),
    "skip_reading_prefix_cache": Absent((None, False), "give the prompt a cache_salt of its own"),
    "stream_interval": Absent((None, 1), "use output_kind; outputs that are not read in time are joined"),
    "structured_outputs": Absent((None,), _STRUCTURE),
    "thinking_token_budget": Absent((None, -1), "limit all tokens with max_tokens"),
    "use_beam_search": Absent((False, None), "beam search is not there yet; generate n completions"),
}
"""By name, each with its neutral values; the first of them is the default."""


@dataclass(kw_only=True, slots=True)
class AbsentSampling:
    """The base of `SamplingParams` that has these parameters as fields."""

    best_of: Any = field(default=None, repr=False)
    early_stopping: Any = field(default=False, repr=False)
    extra_args: Any = field(default=None, repr=False)
    flat_logprobs: Any = field(default=False, repr=False)
    guided_decoding: Any = field(default=None, repr=False)
    length_penalty: Any = field(default=1.0, repr=False)
    logits_processors: Any = field(default=None, repr=False)
    logprob_token_ids: Any = field(default=None, repr=False)
    prompt_logprob_start: Any = field(default=None, repr=False)
    prompt_logprob_token_ids: Any = field(default=None, repr=False)
    repetition_detection: Any = field(default=None, repr=False)
    skip_reading_prefix_cache: Any = field(default=None, repr=False)
    stream_interval: Any = field(default=None, repr=False)
    structured_outputs: Any = field(default=None, repr=False)
    thinking_token_budget: Any = field(default=None, repr=False)
    use_beam_search: Any = field(default=False, repr=False)

    def _check_absent(self) -> None:
        """Refuse every value that is not neutral.

        Raises:
            InvalidParameterError: says what to use instead.
        """
        given = {name: getattr(self, name) for name in ABSENT_SAMPLING}
        changed = {name: value for name, value in given.items() if value is not ABSENT_SAMPLING[name].neutral[0]}
        check_absent("SamplingParams", changed, ABSENT_SAMPLING)
        for name in changed:
            setattr(self, name, ABSENT_SAMPLING[name].neutral[0])
