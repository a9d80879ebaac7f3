"""Sampling parameters of a request, validated when they are made and again when a request takes its copy.

This room knows parameters and their ranges; it knows neither tokenizers nor tensors. Checks that need the model
(token ids against the logits' width, bad words to token ids) happen when the request meets the engine.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Self

from corellm.errors import InvalidParameterError
from corellm.known_fields import KnownFields
from corellm.structured_outputs import STRUCTURED, StructuredOutputsParams

MAX_N = 128
MAX_LOGPROBS = 100
MAX_LOGPROB_TOKEN_IDS = 128
MAX_LOGITS_PROCESSORS = 64
MAX_STOP_STRINGS = 64
MAX_STOP_LENGTH = 1024
_GREEDY_EPS = 1e-5
MAX_TOKEN_ID = 2**31 - 1
MAX_INT = 2**63 - 1
MAX_TEMPERATURE = 1e30
"""Within float32, in which temperatures are applied; at this one all tokens are equally likely."""


def shown(value: Any) -> str:
    """A value as an error message shows it: short, and without the digits of an absurdly large number."""
    if isinstance(value, int) and abs(value) > MAX_INT:
        return "an absurdly large number"
    return f"{value!r:.100}"


def _number(name: str, value: Any, low: float, high: float, *, open_low: bool = False) -> float:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not (isinstance(value, int) or math.isfinite(value)):
        raise InvalidParameterError(f"{name} must be a finite number, got {shown(value)}", param=name)
    if value < low or value > high or (open_low and value == low):
        wanted = f"in {'(' if open_low else '['}{low:g}, {high:g}]"
        if high == MAX_TEMPERATURE and value < low:  # which bounds numbers, not users
            wanted = f"at least {low:g}"
        raise InvalidParameterError(f"{name} must be {wanted}, got {shown(value)}", param=name)
    return float(value)


def _integer(name: str, value: Any, low: int, high: int = MAX_INT) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidParameterError(f"{name} must be an integer, got {shown(value)}", param=name)
    if not low <= value <= high:
        wanted = f"at least {low}" if high == MAX_INT else f"in [{low}, {high}]"
        raise InvalidParameterError(f"{name} must be {wanted}, got {shown(value)}", param=name)
    return value


def _token_ids(name: str, value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    if isinstance(value, (str, bytes)) or not isinstance(value, (Sequence, set, frozenset)):
        raise InvalidParameterError(f"{name} must be a list of token ids, got {value!r}", param=name)
    return tuple(_integer(name, token, 0, MAX_TOKEN_ID) for token in value)


def _strings(name: str, value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    strings = (value,) if isinstance(value, str) else value
    if not isinstance(strings, Sequence) or not all(isinstance(s, str) for s in strings):
        raise InvalidParameterError(f"{name} must be a string or a list of strings, got {value!r}", param=name)
    if any(not s for s in strings):
        raise InvalidParameterError(f"{name} must not hold an empty string", param=name)
    try:
        "".join(strings).encode()
    except UnicodeEncodeError as error:
        raise InvalidParameterError(f"{name} holds a string that is not valid Unicode text", param=name) from error
    if len(strings) > MAX_STOP_STRINGS or any(len(s) > MAX_STOP_LENGTH for s in strings):
        raise InvalidParameterError(
            f"{name} takes at most {MAX_STOP_STRINGS} strings of at most {MAX_STOP_LENGTH} characters", param=name
        )
    return tuple(strings)


@dataclass(frozen=True, slots=True)
class ConstraintParams:
    """What an output must be like, in the words of an extension; plain data, which goes to other processes.

    Raises:
        InvalidParameterError: `kind` or `definition` is no string, or `kind` is empty.
    """

    kind: str
    """One of those that the installed extensions make."""
    definition: str
    """What the extension makes it from; a structure is written as JSON."""

    def __post_init__(self) -> None:
        if not isinstance(self.kind, str) or not isinstance(self.definition, str) or not self.kind:
            raise InvalidParameterError(
                f"a constraint has a kind and a definition, both strings; got {self.kind!r:.100} and "
                f"{self.definition!r:.100}",
                param="constraint",
            )


@dataclass(frozen=True, slots=True)
class LogitsProcessorParams:
    """A function that changes logits, by a name that an extension registered, or itself.

    Raises:
        InvalidParameterError: `name` or `arguments` has a wrong type.
    """

    name: str = ""
    """Empty for a function that is given itself."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """What the extension makes it from; plain data, which goes to other processes."""
    function: Any = None
    """What `corellm_decoding.processors` describes; it stays in this process."""

    def __post_init__(self) -> None:
        named = isinstance(self.name, str) and bool(self.name) and isinstance(self.arguments, Mapping)
        if named is callable(self.function) or (named and self.function is not None):
            raise InvalidParameterError(
                "logits_processors takes functions, names, or objects of a name and its arguments; got "
                f"{self.name!r:.100} and {self.arguments!r:.100}",
                param="logits_processors",
            )

    @classmethod
    def of(cls, given: Any) -> LogitsProcessorParams:
        """Return what stands in `logits_processors`."""
        if isinstance(given, LogitsProcessorParams):
            return given
        if isinstance(given, Mapping) and given.keys() <= {"name", "arguments", "function"}:
            return cls(**given)
        return cls(given) if isinstance(given, str) else cls(function=given)


class RequestOutputKind(Enum):
    """What the outputs of a request hold while it runs."""

    CUMULATIVE = 0
    """Everything generated so far, after every token."""
    DELTA = 1
    """What is new since the previous output. Outputs that were not read in time are joined, so that none is missed."""
    FINAL_ONLY = 2
    """Everything, once it is finished; nothing before."""


@dataclass(kw_only=True, slots=True)
class SamplingParams(KnownFields):
    """How to choose tokens, when to stop, and what to report.

    Order of operations on the logits of one position, as in `transformers` generation: logits processors, allowed
    tokens and the constraint, bad words, `min_tokens`, `logit_bias`, repetition / frequency / presence penalties, then
    (unless greedy) temperature, top-k, top-p, min-p.

    Fields may be assigned: a request takes a copy, which is checked again and not affected by later assignments.

    Raises:
        InvalidParameterError: an unknown field, or a value out of range or of the wrong type; `param` names the field.
    """

    n: int = 1
    """How many completions to generate for the prompt."""
    temperature: float = 1.0
    """0 is greedy; higher is more random."""
    top_k: int = 0
    """Keep the k most likely tokens; 0 or -1 keeps all."""
    top_p: float = 1.0
    """Keep the smallest set of tokens whose probabilities sum to at least this. In (0, 1]."""
    min_p: float = 0.0
    """Drop tokens less likely than this share of the most likely one. In [0, 1]."""
    presence_penalty: float = 0.0
    """Subtracted once from the logit of every token generated so far. In [-2, 2]."""
    frequency_penalty: float = 0.0
    """Subtracted from a generated token's logit once per time it was generated. In [-2, 2]."""
    repetition_penalty: float = 1.0
    """Divides positive (multiplies negative) logits of tokens in prompt or output. In (0, 10]."""
    logit_bias: Mapping[int, float] | None = None
    """`{token id: value added to its logit}`, values in [-100, 100]."""
    allowed_token_ids: Sequence[int] | None = None
    """Only these tokens may be generated."""
    constraint: ConstraintParams | None = None
    """Only what an extension's constraint allows may be generated, token by token."""
    structured_outputs: StructuredOutputsParams | None = None
    """The form that the output is to have, with `corellm-structured`. It becomes `constraint`, and is None from then
    on; assigned or replaced, the new one holds."""
    logits_processors: Sequence[Any] | None = None
    """Functions that change the logits of each token, before anything else, with `corellm-decoding`: functions
    `(output token ids, logits) -> logits`, or names of registered ones. They become `LogitsProcessorParams`."""
    bad_words: Sequence[str] | None = ()
    """Strings that must not be generated, with or without a space before them. Their usual token sequences are banned:
    the same string spelled in other tokens can still come."""
    seed: int | None = None
    """Makes this request's sampling repeat exactly, whatever else is in the batch. None or -1 for random numbers that
    depend on the engine's seed and the order of requests."""
    logprobs: int | None = None
    """Report log-probabilities of the sampled token and of this many most likely ones, per generated token; -1 for the
    whole vocabulary, which takes time and memory accordingly."""
    logprob_token_ids: Sequence[int] | None = None
    """Report log-probabilities and ranks of these tokens, too, per generated token: at most 128. Without `logprobs` it
    is 0 then."""
    prompt_logprobs: int | None = None
    """What `logprobs` is, for the prompt's tokens; the first one has no predecessor, so its entry is None."""
    max_tokens: int | None = 16
    """Stop after this many generated tokens; None for as many as fit."""
    min_tokens: int = 0
    """Generate at least this many tokens before an end-of-sequence or stop token may come."""
    stop: Sequence[str] | str | None = ()
    """Stop as soon as the text holds one of these. One that holds a special token's text is looked for in the text with
    special tokens, also where the output leaves them out."""
    stop_token_ids: Sequence[int] | None = ()
    """Stop as soon as one of these tokens is generated."""
    ignore_eos: bool = False
    """Go on after the model's end-of-sequence token."""
    include_stop_str_in_output: bool = False
    """Keep the stop string (or stop token's text) at the end of the output."""
    skip_special_tokens: bool = True
    """Leave special tokens out of the text."""
    spaces_between_special_tokens: bool = True
    """Keep the space that some tokenizers put between two special tokens; only with `skip_special_tokens=False`."""
    detokenize: bool = True
    """Turn tokens into text; without it `text` stays empty, `decoded_token` is None and `stop` is refused."""
    truncate_prompt_tokens: int | None = None
    """Keep this many of the prompt's last tokens, placeholders expanded; -1 for as many as leave room for `max_tokens`.
    Items before them are left out; a prompt that would be cut within an item is refused, and so is text longer than
    `max_model_len` tokens can be."""
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    """What the outputs of `AsyncLLM` hold; `LLM` gives everything at the end."""

    def __post_init__(self) -> None:
        self._check_distribution()
        self._check_choice()
        if self.constraint is not None or self.structured_outputs is not None:
            self._check_constraint()
        self._check_length()
        self._check_report()

    def _check_distribution(self) -> None:
        self.n = _integer("n", self.n, 1, MAX_N)
        self.temperature = _number("temperature", self.temperature, 0.0, MAX_TEMPERATURE)
        if self.temperature < _GREEDY_EPS:
            self.temperature = 0.0
        self.top_k = max(0, _integer("top_k", self.top_k, -1))
        self.top_p = _number("top_p", self.top_p, 0.0, 1.0, open_low=True)
        self.min_p = _number("min_p", self.min_p, 0.0, 1.0)
        if self.seed is not None and _integer("seed", self.seed, -MAX_INT - 1) == -1:
            self.seed = None

    def _check_choice(self) -> None:
        self.presence_penalty = _number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        self.frequency_penalty = _number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        self.repetition_penalty = _number("repetition_penalty", self.repetition_penalty, 0.0, 10.0, open_low=True)
        if self.logit_bias is not None:
            self.logit_bias = self._checked_bias(self.logit_bias)
        if self.allowed_token_ids is not None:
            self.allowed_token_ids = _token_ids("allowed_token_ids", self.allowed_token_ids)
            if not self.allowed_token_ids:
                raise InvalidParameterError("allowed_token_ids must not be empty", param="allowed_token_ids")
        self.bad_words = _strings("bad_words", self.bad_words)
        if self.logits_processors is not None:
            self.logits_processors = _processors(self.logits_processors)

    def _check_constraint(self) -> None:
        constraint, form = self.constraint, self.structured_outputs
        if constraint is not None and not isinstance(constraint, ConstraintParams):
            raise InvalidParameterError(
                f"constraint must be a ConstraintParams, got {constraint!r:.100}", param="constraint"
            )
        if form is None:
            return
        if not isinstance(form, StructuredOutputsParams):
            raise InvalidParameterError(
                f"structured_outputs must be a StructuredOutputsParams, got {form!r:.100}", param="structured_outputs"
            )
        if constraint is not None and constraint.kind != STRUCTURED:
            raise InvalidParameterError(
                f"structured_outputs: there is a constraint of the kind {constraint.kind!r:.100}, too; give one",
                param="structured_outputs",
            )
        self.constraint, self.structured_outputs = ConstraintParams(STRUCTURED, form.definition()), None

    def _check_length(self) -> None:
        if self.max_tokens is not None:
            self.max_tokens = _integer("max_tokens", self.max_tokens, 1)
        self.min_tokens = _integer("min_tokens", self.min_tokens, 0)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidParameterError(
                f"min_tokens ({self.min_tokens}) must not exceed max_tokens ({self.max_tokens})", param="min_tokens"
            )
        self.stop = _strings("stop", self.stop)
        self.stop_token_ids = _token_ids("stop_token_ids", self.stop_token_ids)
        if self.truncate_prompt_tokens is not None:
            kept = _integer("truncate_prompt_tokens", self.truncate_prompt_tokens, -1)
            if kept == 0:
                raise InvalidParameterError(
                    "truncate_prompt_tokens must be at least 1, or -1, got 0", param="truncate_prompt_tokens"
                )

    def _check_report(self) -> None:
        self.logprobs = _top("logprobs", self.logprobs)
        if self.logprob_token_ids is not None:
            self._check_stated(self.logprob_token_ids)
        self.prompt_logprobs = _top("prompt_logprobs", self.prompt_logprobs)
        for name in _SWITCHES:
            if not isinstance(getattr(self, name), bool):
                raise InvalidParameterError(f"{name} must be True or False, got {getattr(self, name)!r}", param=name)
        if self.stop and not self.detokenize:
            raise InvalidParameterError("stop needs detokenize=True; use stop_token_ids instead", param="stop")
        if not isinstance(self.output_kind, RequestOutputKind):
            raise InvalidParameterError(
                f"output_kind must be a RequestOutputKind, got {self.output_kind!r:.100}", param="output_kind"
            )

    def _check_stated(self, given: Sequence[int]) -> None:
        stated = dict.fromkeys(_token_ids("logprob_token_ids", given))
        if len(stated) > MAX_LOGPROB_TOKEN_IDS:
            raise InvalidParameterError(
                f"logprob_token_ids takes at most {MAX_LOGPROB_TOKEN_IDS} token ids, got {len(stated)}; logprobs=-1 "
                "reports the whole vocabulary",
                param="logprob_token_ids",
            )
        self.logprob_token_ids = tuple(stated) or None
        if stated and self.logprobs is None:
            self.logprobs = 0

    @staticmethod
    def _checked_bias(bias: Any) -> dict[int, float]:
        if not isinstance(bias, Mapping):
            raise InvalidParameterError(f"logit_bias must map token ids to numbers, got {bias!r}", param="logit_bias")
        return {
            _integer("logit_bias", _as_int(token), 0, MAX_TOKEN_ID): _number("logit_bias", value, -100.0, 100.0)
            for token, value in bias.items()
        }

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature == 0.0

    def clone(self) -> Self:
        """A copy, checked.

        Raises:
            InvalidParameterError: a value assigned since is wrong.
        """
        other = copy.copy(self)
        other.__post_init__()
        return other

    def child(self, index: int) -> Self:
        """The parameters of completion `index` out of `n`: one completion, its own seed."""
        seed = self.seed
        if seed is not None:  # away from -1, which is no seed
            seed = _wrapped(seed + index if seed >= 0 else seed - index)
        return replace(self, n=1, seed=seed)


def params_copy(given: SamplingParams) -> SamplingParams:
    """A request's own parameters.

    Raises:
        InvalidParameterError: not a `SamplingParams`, or one with a wrong value.
    """
    if not isinstance(given, SamplingParams):
        raise InvalidParameterError(f"params must be a SamplingParams, got {type(given).__name__}", param="params")
    return given.clone()


def params_of_each(given: SamplingParams | Sequence[SamplingParams], count: int) -> list[SamplingParams]:
    """The parameters of each of `count` requests, of one for all or a list of one each.

    Raises:
        InvalidParameterError: neither of these, or one with a wrong value.
    """
    if isinstance(given, SamplingParams):
        return [given.clone()] * count
    if not isinstance(given, Sequence) or not all(isinstance(params, SamplingParams) for params in given):
        raise InvalidParameterError(
            f"sampling_params must be a SamplingParams or a list of them, got {given!r:.100}", param="sampling_params"
        )
    if len(given) != count:
        raise InvalidParameterError(
            f"{len(given)} sampling_params for {count} prompts; give one for all, or one each", param="sampling_params"
        )
    return [params.clone() for params in given]


def _processors(given: Any) -> tuple[LogitsProcessorParams, ...] | None:
    if isinstance(given, (str, bytes)) or not isinstance(given, Sequence) or len(given) > MAX_LOGITS_PROCESSORS:
        raise InvalidParameterError(
            f"logits_processors takes a list of at most {MAX_LOGITS_PROCESSORS}, got {shown(given)}",
            param="logits_processors",
        )
    return tuple(map(LogitsProcessorParams.of, given)) or None


_SWITCHES = (
    "ignore_eos", "include_stop_str_in_output", "skip_special_tokens", "spaces_between_special_tokens", "detokenize",
)  # fmt: skip


def _top(name: str, value: Any) -> int | None:
    return None if value is None else _integer(name, value, -1, MAX_LOGPROBS)


def _as_int(token: Any) -> Any:
    """The integer in a string, as JSON objects have them for keys (`{"50256": -100}`); else the value itself."""
    return int(token) if isinstance(token, str) and token.isdecimal() and len(token) < 20 else token


def _wrapped(seed: int) -> int:
    return (seed + 2**63) % 2**64 - 2**63
