"""Fields of all requests that generate: how to choose tokens, when to stop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from corellm.known_fields import Absent
from corellm_server.requests.body import FIRST_ERROR, Body


class StreamOptions(Body):
    """`stream_options`."""

    WITHIN: ClassVar[str] = "stream_options."
    IGNORED: ClassVar[Mapping[str, str]] = {"include_obfuscation": "random padding of events"}

    include_usage: bool = False
    """End with an event that has the numbers of tokens."""
    continuous_usage_stats: bool = False
    """Every event has the numbers of tokens so far."""


_BEAMS = "outputs are searched with beams in /v1/completions and /v1/chat/completions"

OF_BEAMS = {
    "best_of": Absent((None, 1), _BEAMS),
    "early_stopping": Absent((False, None), _BEAMS),
    "length_penalty": Absent((1.0, None), _BEAMS),
    "use_beam_search": Absent((False, None), _BEAMS),
}
"""Parameters of beam search, for requests that have none: values that ask for nothing."""
OF_OTHERS = {
    "return_tokens_as_token_ids": Absent((False,), "use return_token_ids, or /tokenize"),
}
"""Parameters of other servers, which clients send with values that ask for nothing."""


class ChoiceFields(Body):
    """How to choose tokens and how to send them; each API has its own names for when to stop."""

    model: str
    """A name of `/v1/models`."""
    temperature: float | None = None
    """0 is greedy; by default as the checkpoint recommends."""
    top_p: float | None = None
    """Sample from the most likely tokens that have this much probability together."""
    presence_penalty: float | None = None
    """Lowers tokens that were generated already."""
    frequency_penalty: float | None = None
    """Lowers tokens by how often they were generated."""
    logit_bias: dict[str, float] | None = None
    """Added to the logits of token ids."""
    seed: int | None = None
    """Makes sampling repeat exactly."""
    stream: bool | None = None
    """Send the output as events while it is generated."""

    top_k: int | None = None
    """Sample among the k most likely tokens."""
    min_p: float | None = None
    """Drop tokens less likely than this share of the most likely one."""
    repetition_penalty: float | None = None
    """Above 1 discourages tokens of prompt and output."""
    min_tokens: int | None = None
    """Tokens before the output may end."""
    stop_token_ids: Annotated[list[int], FIRST_ERROR] | None = None
    """Token ids that end the output."""
    allowed_token_ids: Annotated[list[int], FIRST_ERROR] | None = None
    """Only these tokens may be generated."""
    logits_processors: Annotated[list[str | dict[str, Any]], FIRST_ERROR] | None = None
    """Functions that change logits, which the operator has installed: names, or objects of `name` and `arguments`."""
    bad_words: Annotated[list[str], FIRST_ERROR] | None = None
    """Strings that must not be generated."""
    ignore_eos: bool | None = None
    """Go on after the end-of-sequence token."""
    include_stop_str_in_output: bool | None = None
    """Keep the stop string."""
    skip_special_tokens: bool | None = None
    """Leave special tokens out of the text."""
    spaces_between_special_tokens: bool | None = None
    """Spaces between special tokens that are kept."""
    guided_json: str | dict[str, Any] | None = None
    """The output is JSON of this schema; as `structured_outputs.json`."""
    guided_regex: str | None = None
    """The output matches this regex."""
    guided_choice: Annotated[list[str], FIRST_ERROR] | None = None
    """The output is one of these."""
    guided_grammar: str | None = None
    """The output is of this grammar, in Lark's notation or GBNF."""
    structured_outputs: dict[str, Any] | None = None
    """The form of the output: the fields of `StructuredOutputsParams`."""
    priority: int | None = None
    """Lower runs first, if the server schedules by priority."""


class SamplingFields(ChoiceFields):
    """The same, and when to stop as OpenAI has it."""

    REFUSED: ClassVar[Mapping[str, Absent]] = {**OF_OTHERS, **OF_BEAMS}

    stop: str | Annotated[list[str], FIRST_ERROR] | None = None
    """Up to four strings that end the output."""
    logprob_token_ids: Annotated[list[int], FIRST_ERROR] | None = None
    """Report log-probabilities of these tokens, too, where those of the output's tokens are asked for."""


class CompletionFields(SamplingFields):
    """What both kinds of completions have beyond that."""

    REFUSED: ClassVar[Mapping[str, Absent]] = OF_OTHERS

    n: int | None = None
    """How many completions of each prompt."""
    max_tokens: int | None = None
    """Most tokens to generate."""
    stream_options: StreamOptions | None = None
    """With `stream` only."""
    use_beam_search: bool | None = None
    """Search for the most likely outputs, instead of sampling some; with `corellm-decoding`, and not with `stream`."""
    best_of: int | None = None
    """How many beams a search has; by default `n`, which is how many of them are returned."""
    length_penalty: float | None = None
    """Exponent of the length by which a beam's log-probability is divided, for its score; with `use_beam_search`."""
    early_stopping: bool | str | None = None
    """When a search ends: `true`, `false` or `never`; with `use_beam_search`."""
    response_format: dict[str, Any] | None = None
    """The form of the output: `{"type": "text"}`, `json_object`, `json_schema` with `json_schema.schema`, or
    `structural_tag`."""

    @property
    def usage_options(self) -> dict[str, bool]:
        """Where a stream has the numbers of tokens, as `Usage` takes it."""
        options = self.stream_options or StreamOptions()
        return {"at_end": options.include_usage, "in_each": options.continuous_usage_stats}
