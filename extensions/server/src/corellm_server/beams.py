"""How the outputs of a request are searched with beams: the client's fields, as `beam_search` takes them.

Knows fields and limits; the search is `corellm-decoding`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from corellm.sampling_params import MAX_LOGPROBS, SamplingParams
from corellm_server.errors import ApiError
from corellm_server.limits import RequestLimits
from corellm_server.requests.sampling import OF_BEAMS, CompletionFields

_MOST_TOKENS = 2**31 - 1
_MOST_BEAMS = MAX_LOGPROBS // 2
"""Most beams; with more, each would take the whole vocabulary's log-probabilities."""
_NOTHING: tuple[object, ...] = (0, "", [], {})
_WITHOUT_BEAMS: Mapping[str, tuple[object, ...]] = {
    **dict.fromkeys(("presence_penalty", "frequency_penalty", "logit_bias", "min_tokens", "min_p", "stop"), _NOTHING),
    **dict.fromkeys(("stop_token_ids", "allowed_token_ids", "bad_words", "logits_processors"), _NOTHING),
    **dict.fromkeys(("logprob_token_ids", "stream"), _NOTHING),
    "top_p": (1,), "top_k": (0, -1), "repetition_penalty": (1,), "prompt_logprobs": (), "echo": _NOTHING,
}  # fmt: skip
"""Fields that a search cannot follow, and their values that ask for nothing."""


def beam_fields(request: CompletionFields, params: SamplingParams, limits: RequestLimits) -> dict[str, Any] | None:
    """The fields of a search; None to sample the outputs.

    Args:
        request: the client's.
        params: made of it, for the form of its outputs.
        limits: of the server.

    Raises:
        ApiError: a field that has no effect, or is out of range; names it.
    """
    if not request.use_beam_search:
        for name, absent in OF_BEAMS.items():
            if not absent.accepts(getattr(request, name)):
                raise ApiError(400, f"{name} needs use_beam_search: true", param=name)
        return None
    for name, neutral in _WITHOUT_BEAMS.items():
        value = getattr(request, name, None)
        if value is not None and value not in neutral:
            raise ApiError(400, f"{name} has no effect on a search with beams; leave it out", param=name)
    if request.temperature not in (None, 0, 1):
        # the search would read the whole vocabulary for each beam, beside the event loop's other work
        raise ApiError(
            400,
            "a search with beams is by the model's own probabilities: temperature must be 0, 1 or left out, got "
            f"{request.temperature}",
            param="temperature",
        )
    if params.constraint is not None:
        raise ApiError(
            400, "a search with beams holds outputs to no form; leave one of both out", param="use_beam_search"
        )
    width, most = params.n if request.best_of is None else request.best_of, min(limits.max_n, _MOST_BEAMS)
    if not params.n <= width <= most:
        name = "n" if request.best_of is None else "best_of"
        raise ApiError(400, f"{name} must be in [n, {most}], n is {params.n}, got {width}", param=name)
    given = {name: getattr(request, name) for name in ("early_stopping", "ignore_eos", "length_penalty")}
    return {
        **{name: value for name, value in given.items() if value is not None},
        "beam_width": width,
        "max_tokens": params.max_tokens or _MOST_TOKENS,
        "logprobs": params.logprobs,
        "include_stop_str_in_output": params.include_stop_str_in_output,
        "skip_special_tokens": params.skip_special_tokens,
    }
