"""Sampling parameters of scripts written for vLLM that corellm lacks: neutral values, and what to use instead.

Data only; the class that takes them is in `corellm_vllm.sampling_params`.
"""

from __future__ import annotations

from corellm.known_fields import Absent

_BEAMS = "it belongs to beam search: LLM.beam_search(prompts, BeamSearchParams(...))"

ABSENT_SAMPLING = {
    "best_of": Absent(
        (None, 1), "generate n completions with logprobs, and take the one of the best cumulative_logprob"
    ),
    "early_stopping": Absent((False, None), _BEAMS),
    "extra_args": Absent((None, {}), "no sampler here takes any"),
    "flat_logprobs": Absent((False, None), "log-probabilities come as one dict per position"),
    "length_penalty": Absent((1.0, None), _BEAMS),
    "prompt_logprob_start": Absent((None, 0), "prompt_logprobs are of the whole prompt"),
    "prompt_logprob_token_ids": Absent((None,), "use prompt_logprobs=-1, and look the tokens up"),
    "repetition_detection": Absent((None,), "use repetition_penalty"),
    "skip_reading_prefix_cache": Absent((None, False), "give the prompt a cache_salt of its own"),
    "stream_interval": Absent((None, 1), "use output_kind; outputs that are not read in time are joined"),
    "thinking_token_budget": Absent((None, -1), "give structured_outputs a reasoning with max_tokens"),
    "use_beam_search": Absent((False, None), _BEAMS),
}
"""By name; the first of the neutral values is the default."""

ABSENT_OF_FORMS = {
    "backend": Absent(
        (None, "auto", "guidance", "lm-format-enforcer", "outlines", "xgrammar"), "llguidance is the only one"
    ),
    "disable_additional_properties": Absent((False, None), "set additionalProperties to false in the schema"),
    "disable_fallback": Absent((False, None, True), "there is one backend"),
}
"""Fields of `StructuredOutputsParams` and `GuidedDecodingParams`; the first of the neutral values is the default."""
