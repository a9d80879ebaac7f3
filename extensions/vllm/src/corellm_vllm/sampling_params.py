"""`SamplingParams` and the form of outputs, with parameters that corellm lacks, which take their neutral values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from corellm.sampling_params import RequestOutputKind
from corellm.sampling_params import SamplingParams as CoreSamplingParams
from corellm.structured_outputs import StructuredOutputsParams as CoreStructuredOutputsParams
from corellm_vllm.absent.exports import exports
from corellm_vllm.absent.sampling import ABSENT_OF_FORMS, ABSENT_SAMPLING
from corellm_vllm.absent.table import check_absent

if TYPE_CHECKING:
    from corellm_decoding import BeamSearchParams as BeamSearchParams


@dataclass(kw_only=True, frozen=True, slots=True)
class StructuredOutputsParams(CoreStructuredOutputsParams):
    """The form of an output; with `corellm-structured`.

    Raises:
        InvalidParameterError: none or several forms, a wrong value, or something that corellm lacks.
    """

    backend: Any = field(default=None, repr=False)
    disable_additional_properties: Any = field(default=False, repr=False)
    disable_fallback: Any = field(default=False, repr=False)

    def __post_init__(self) -> None:
        given = {name: getattr(self, name) for name in ABSENT_OF_FORMS}
        check_absent("StructuredOutputsParams", given, ABSENT_OF_FORMS)
        CoreStructuredOutputsParams.__post_init__(self)

    @classmethod
    def from_optional(cls, **given: Any) -> Self:
        """Return a form in which None stands for the default."""
        return cls(**{name: value for name, value in given.items() if value is not None})


GuidedDecodingParams = StructuredOutputsParams
"""Its older name."""


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
    prompt_logprob_start: Any = field(default=None, repr=False)
    prompt_logprob_token_ids: Any = field(default=None, repr=False)
    repetition_detection: Any = field(default=None, repr=False)
    skip_reading_prefix_cache: Any = field(default=None, repr=False)
    stream_interval: Any = field(default=None, repr=False)
    thinking_token_budget: Any = field(default=None, repr=False)
    use_beam_search: Any = field(default=False, repr=False)

    def __post_init__(self) -> None:
        given = {name: getattr(self, name) for name in ABSENT_SAMPLING}
        changed = {name: value for name, value in given.items() if value is not ABSENT_SAMPLING[name].neutral[0]}
        check_absent("SamplingParams", changed, ABSENT_SAMPLING)
        for name in changed:
            setattr(self, name, ABSENT_SAMPLING[name].neutral[0])
        if self.guided_decoding is not None:
            self.structured_outputs, self.guided_decoding = self.guided_decoding, None
        CoreSamplingParams.__post_init__(self)  # `slots` makes a second class, which `super()` does not know

    @classmethod
    def from_optional(cls, **given: Any) -> Self:
        """Return parameters in which None stands for the default."""
        return cls(**{name: value for name, value in given.items() if value is not None})


__all__ = ["BeamSearchParams", "GuidedDecodingParams", "RequestOutputKind", "SamplingParams", "StructuredOutputsParams"]
__getattr__ = exports(__name__, {"BeamSearchParams": "corellm_decoding"})
