"""`SamplingParams` that takes parameters which corellm lacks, with their neutral values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

from corellm.sampling_params import RequestOutputKind
from corellm.sampling_params import SamplingParams as CoreSamplingParams
from corellm_vllm.absent.exports import exports
from corellm_vllm.absent.sampling import ABSENT_SAMPLING
from corellm_vllm.absent.table import check_absent


@dataclass(kw_only=True, slots=True)
class SamplingParams(CoreSamplingParams):
    """How to choose tokens, when to stop, and what to report.

    Raises:
        InvalidParameterError: an unknown field, a value out of range or of the wrong type, or something that corellm
            lacks; `param` names the field.
    """

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

    def __post_init__(self) -> None:
        given = {name: getattr(self, name) for name in ABSENT_SAMPLING}
        changed = {name: value for name, value in given.items() if value is not ABSENT_SAMPLING[name].neutral[0]}
        check_absent("SamplingParams", changed, ABSENT_SAMPLING)
        for name in changed:
            setattr(self, name, ABSENT_SAMPLING[name].neutral[0])
        CoreSamplingParams.__post_init__(self)  # `slots` makes a second class, which `super()` does not know

    @classmethod
    def from_optional(cls, **given: Any) -> Self:
        """Return parameters in which None stands for the default."""
        return cls(**{name: value for name, value in given.items() if value is not None})


__all__ = ["RequestOutputKind", "SamplingParams"]
__getattr__ = exports(__name__)
