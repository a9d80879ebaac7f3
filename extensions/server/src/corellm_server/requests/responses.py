"""The body of `/v1/responses`. What an earlier response was made of is brought by the caller; nothing is kept here."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PrivateAttr

from corellm.known_fields import Absent
from corellm_server.errors import ApiError
from corellm_server.requests.body import FIRST_ERROR, Body
from corellm_server.requests.chat import Effort, TemplateFields
from corellm_server.requests.items import to_messages
from corellm_server.requests.sampling import SamplingFields

_Label = Annotated[str, Field(max_length=64)]
Includable = Literal[
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
]
"""Names that OpenAI's client has for what a response may include."""


class TextConfig(Body):
    """`text`."""

    WITHIN: ClassVar[str] = "text."
    IGNORED: ClassVar[Mapping[str, str]] = {"verbosity": "how much to write"}

    format: dict[str, Any] | None = None
    """The form of the output: `{"type": "text"}`, `json_object`, or `json_schema` with its `schema`."""


class ReasoningConfig(Body):
    """`reasoning`."""

    WITHIN: ClassVar[str] = "reasoning."
    IGNORED: ClassVar[Mapping[str, str]] = {
        "context": "which earlier reasoning counts",
        "generate_summary": "how to sum up",
        "mode": "which way to think",
        "summary": "how to sum up; reasoning is reported as it is",
    }

    effort: Effort | None = None
    """How long to think, for templates that take it."""


class ResponsesRequest(TemplateFields, SamplingFields):
    """`POST /v1/responses`."""

    FIELD: ClassVar[str] = "input"
    IGNORED: ClassVar[Mapping[str, str]] = {
        "access_programs": "programs of OpenAI",
        "background_options": "how to run in the background",
        "image": "how images are compressed",
        "max_tool_calls": "how many tool calls",
        "prompt_cache_key": "which cache to use; equal prefixes always share",
        "prompt_cache_options": "how to use a cache",
        "prompt_cache_retention": "how long a prefix is cached",
        "safety_identifier": "whose request it is",
        "service_tier": "how fast and how expensive",
        "stream_options": "random padding of events",
        "user": "whose request it is",
    }
    REFUSED: ClassVar[Mapping[str, Absent]] = {
        **SamplingFields.REFUSED,
        "context_management": Absent(([],), "nothing is left out of a conversation; send a shorter one"),
        "conversation": Absent((), "there are no conversations to go on with; use previous_response_id"),
        "moderation": Absent((), "nothing is moderated"),
        "prompt": Absent((), "there are no stored prompts; send input and instructions"),
    }

    input: str | list[Any]
    """The user's text, or the conversation as items: messages, their content as text or parts."""
    previous_response_id: str | None = None
    """A kept response that this one goes on with: its input, with what was before it, and its output come first."""
    store: bool | None = None
    """Whether to keep the response, for `previous_response_id` and for a client that comes back; by default yes."""
    background: bool | None = None
    """Return at once and go on without the client, which asks for the response by its id."""
    instructions: str | None = None
    """A system message before the input; not that of the previous response."""
    max_output_tokens: int | None = None
    """Most tokens to generate."""
    include: Annotated[list[Includable], FIRST_ERROR] | None = None
    """What else to report: `message.output_text.logprobs`; the others ask for nothing that there is."""
    top_logprobs: int | None = None
    """Report log-probabilities of this many most likely tokens; with `include`."""
    metadata: Annotated[dict[_Label, Annotated[str, Field(max_length=512)]], Field(max_length=16)] | None = None
    """Labels that the response repeats."""
    truncation: Literal["auto", "disabled"] | None = None
    """Whether the oldest turns are left out where prompt and output would be too long (`auto`)."""
    tools: Annotated[list[Any], FIRST_ERROR] | None = None
    """Functions that the model may call, with JSON schemas of their arguments; the client runs them."""
    tool_choice: str | dict[str, Any] | None = None
    """`auto`, `none` for a model that is not told of the tools, `required`, or an object that names one to call."""
    parallel_tool_calls: bool | None = None
    """Whether a response may have several calls; if not, all but the first are left out."""
    reasoning: ReasoningConfig | None = None
    """How long to think (`effort`)."""
    thinking_token_budget: int | None = None
    """Most tokens of reasoning, whose end is written then; -1 for no bound."""
    text: TextConfig | None = None
    """The form of the output."""

    _earlier: list[Any] = PrivateAttr(default_factory=list)

    def go_on(self, earlier: list[Any]) -> None:
        """Have items of earlier responses come before the input. Their numbers are negative."""
        self._earlier = earlier

    @property
    def own_items(self) -> list[Any]:
        """The input as items."""
        return [{"role": "user", "content": self.input}] if isinstance(self.input, str) else self.input

    @property
    def wants_logprobs(self) -> bool:
        """Whether to report log-probabilities."""
        return "message.output_text.logprobs" in (self.include or ())

    @property
    def is_kept(self) -> bool:
        """See `TemplateFields`."""
        return self.store is not False or self.previous_response_id is not None

    @property
    def turns(self) -> list[dict[str, Any]]:
        """The conversation as chat's messages.

        Raises:
            ApiError: an item or part that no message can have; names it.
        """
        return self._numbered[0]

    @property
    def numbers(self) -> list[int]:
        """Which item each message begins with."""
        return self._numbered[1]

    @cached_property
    def _numbered(self) -> tuple[list[dict[str, Any]], list[int]]:
        first = [] if self.instructions is None else [{"role": "system", "content": self.instructions}]
        if not self.input and isinstance(self.input, list):
            raise ApiError(400, "input must have at least one item", param="input")
        begin = -len(self._earlier)
        messages, numbers = to_messages([*self._earlier, *self.own_items], begin)
        return [*first, *messages], [*range(begin - len(first), begin), *numbers]

    @property
    def effort(self) -> str | None:
        """How long to think; None if the request does not say."""
        return None if self.reasoning is None else self.reasoning.effort

    @property
    def num_reserved(self) -> int | None:
        """Tokens that the oldest turns are left out for, so that the output has room; None to refuse instead."""
        return (self.max_output_tokens or 1) if self.truncation == "auto" else None
