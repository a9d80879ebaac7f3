"""The bodies of `/v1/messages` and `/v1/messages/count_tokens`: Anthropic's API.

Knows its fields; what its messages and blocks may have is known to `corellm.multimodal.chat`, which reads those of all
APIs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from corellm.errors import RequestError
from corellm.known_fields import Absent, FieldTable
from corellm.multimodal.chat.reading import read_text
from corellm.sampling_params import MAX_STOP_LENGTH
from corellm_server.errors import ApiError, as_api_error
from corellm_server.requests.body import FIRST_ERROR, Body
from corellm_server.requests.chat import Messages, TemplateFields
from corellm_server.requests.sampling import ChoiceFields
from corellm_server.responses.content_blocks import CALL_PREFIX

_NOT_KEPT = "nothing is kept between requests; send the whole conversation as messages"


_TOOL = FieldTable(
    {
        "type": "`custom`",
        "name": "of the tool",
        "description": "what it does",
        "input_schema": "the JSON schema of its arguments",
        "strict": "whether arguments are held to the schema",
    },
    {
        "allowed_callers": "what else may call it",
        "cache_control": "what to cache",
        "eager_input_streaming": "when to stream arguments; they always are as they come",
    },
    {
        "defer_loading": Absent((False,), "the model is told of all tools at once"),
        "input_examples": Absent(([],), "templates show none to the model; give examples in the description"),
    },
)


class ToolChoice(Body):
    """`tool_choice`."""

    WITHIN: ClassVar[str] = "tool_choice."

    type: Literal["auto", "any", "tool", "none"]
    """Whether the model may or must call a tool."""
    name: str | None = None
    """Which tool, with type `tool`."""
    disable_parallel_tool_use: bool | None = None
    """Whether a message has one call at most; all others are left out."""


class Thinking(Body):
    """`thinking`."""

    WITHIN: ClassVar[str] = "thinking."

    type: Literal["enabled", "adaptive", "disabled"]
    """Whether to think."""
    budget_tokens: int | None = None
    """Most tokens of thought, whose end is written then."""
    display: Literal["summarized", "omitted"] | None = None
    """Whether to report what the model thought, which is never summed up; by default yes."""


class OutputConfig(Body):
    """`output_config`."""

    WITHIN: ClassVar[str] = "output_config."
    IGNORED: ClassVar[Mapping[str, str]] = {"effort": "how much to think"}

    format: dict[str, Any] | None = None
    """The form of the output: `{"type": "json_schema", "schema": {...}}`."""


class MessagesFields(TemplateFields, ChoiceFields):
    """A conversation in Anthropic's form, and what it asks for."""

    JOINS_TURNS: ClassVar[bool] = True
    PARAMETERS: ClassVar[str] = "input_schema"
    IGNORED: ClassVar[Mapping[str, str]] = {
        "diagnostics": "why a cache had no use",
        "inference_geo": "where to run",
        "metadata": "whose request it is",
        "service_tier": "how fast and how expensive",
        "speed": "how fast and how expensive",
        "user_profile_id": "whose request it is",
        "workspace_id": "whose request it is",
    }
    REFUSED: ClassVar[Mapping[str, Absent]] = {
        "container": Absent((), _NOT_KEPT),
        "context_management": Absent(({}, {"edits": []}), "max_window_size leaves out the oldest turns"),
        "mcp_servers": Absent(([],), "tools are run by the client; describe theirs as tools"),
        "thread": Absent((False,), _NOT_KEPT),
    }

    messages: Messages
    """The conversation: roles, and content as text or blocks. The output goes on with a last one of the assistant."""
    system: str | Annotated[list[Any], FIRST_ERROR] | None = None
    """A system message before the conversation, as text or blocks of text."""
    max_tokens: int | None = None
    """Most tokens to generate."""
    stop_sequences: (
        Annotated[list[Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH)]], FIRST_ERROR] | None
    ) = None
    """Up to four strings that end the output."""
    cache_control: dict[str, Any] | None = None
    """As in a block: `usage` tells the tokens that were found in the cache apart from `input_tokens`."""
    output_config: OutputConfig | None = None
    """The output's `format`."""
    tools: Annotated[list[Any], FIRST_ERROR] | None = None
    """Tools that the model may call, with JSON schemas of their arguments; the client runs them."""
    tool_choice: ToolChoice | None = None
    """`auto`, `none`, `any`, or `tool` with its `name`; with `disable_parallel_tool_use` there is one call at most."""
    thinking: Thinking | None = None
    """Whether to think, for templates that take `enable_thinking`, and for how many tokens at most."""

    @property
    def turns(self) -> list[dict[str, Any]]:
        """The conversation as chat's messages.

        Raises:
            ApiError: a block of `system` is not of text; names it.
        """
        turns = [_with_own_ids(message) for message in self.messages]
        if self.system:
            turns = [{"role": "system", "content": self._instructions(self.system)}, *turns]
        if turns and turns[-1].get("role") == "assistant" and self.continue_final_message is not False:
            turns = [*turns[:-1], {**turns[-1], "prefix": True}]
        return turns

    @staticmethod
    def _instructions(given: str | list[Any]) -> str | list[str]:
        if isinstance(given, str):
            return given
        try:
            return [read_text(f"system[{i}]", block) for i, block in enumerate(given)]
        except RequestError as error:
            raise as_api_error(error) from None

    @property
    def numbers(self) -> Sequence[int]:
        """Which message each turn is; `system` comes before the first."""
        return range(-int(bool(self.system)), len(self.messages))

    @property
    def thinks(self) -> bool | None:
        """Whether to think; None if the request does not say."""
        return None if self.thinking is None else self.thinking.type != "disabled"

    @property
    def effort(self) -> str | None:
        """How long to think; None if the request does not say."""
        return "none" if self.thinks is False else None

    @property
    def thinking_budget(self) -> int | None:
        """Most tokens of thought; None for no bound.

        Raises:
            ApiError: it is no number of tokens.
        """
        budget = None if self.thinking is None else self.thinking.budget_tokens
        if budget is not None and budget < 0:
            told = f"thinking.budget_tokens must be at least 0, got {budget}"
            raise ApiError(400, told, param="thinking.budget_tokens")
        return budget

    @property
    def shows_thinking(self) -> bool:
        """Whether to report what the model thought."""
        return self.thinking is not None and bool(self.thinks) and self.thinking.display != "omitted"

    @property
    def functions(self) -> list[dict[str, Any]]:
        """The tools as OpenAI's functions.

        Raises:
            ApiError: a field that a tool cannot have; names it.
        """
        return [_function(f"tools[{i}]", tool) for i, tool in enumerate(self.tools or ())]

    @property
    def function_choice(self) -> str | dict[str, Any] | None:
        """The choice of a tool as OpenAI has it.

        Raises:
            ApiError: it is not known which tool is chosen.
        """
        choice = self.tool_choice
        if choice is None:
            return None
        if (choice.type == "tool") != (choice.name is not None):
            told = "tool_choice.name is the tool's, with type tool and with no other"
            raise ApiError(400, told, param="tool_choice")
        if choice.type == "tool":
            return {"type": "function", "function": {"name": choice.name}}
        return "required" if choice.type == "any" else choice.type

    @property
    def one_call(self) -> bool:
        """Whether there is one call at most."""
        return self.tool_choice is not None and self.tool_choice.disable_parallel_tool_use is True

    @property
    def marks_cache(self) -> bool:
        """Whether something says what to cache, as Anthropic's clients do that want to know what was cached."""
        contents = [self.system, *(message.get("content") for message in self.messages)]
        blocks = [block for content in (*contents, self.tools) if isinstance(content, list) for block in content]
        return self.cache_control is not None or any(isinstance(b, dict) and b.get("cache_control") for b in blocks)


class CountTokensRequest(MessagesFields):
    """`POST /v1/messages/count_tokens`: all that a message takes, without a need for `max_tokens`."""


class MessagesRequest(MessagesFields):
    """`POST /v1/messages`."""

    max_tokens: int
    """Most tokens to generate; fewer where the model takes no more."""


def _function(where: str, given: Any) -> dict[str, Any]:
    """A tool as a function in the spelling of responses, the fields of which have the same names but for one.

    Raises:
        ApiError: it is no tool of the client's, or has an unknown field.
    """
    if not isinstance(given, Mapping):
        raise ApiError(400, f"{where} must be an object with a name and an input_schema", param=where)
    if given.get("type") not in (None, "custom"):
        told = f"{where}: type {given['type']!r:.100} is not supported: tools are those of the client, of type custom"
        raise ApiError(400, told, param=where, code="unsupported_parameter")

    def refusal(name: str, told: str) -> ApiError:
        path = f"{where}.{name:.100}"
        if name in _TOOL.refused:
            return ApiError(400, f"{path} is not supported: {told}", param=path, code="unsupported_parameter")
        return ApiError(400, f"{where} has no {name!r:.100}{told}", param=path, code="unknown_parameter")

    kept = _TOOL.kept(given, refusal)
    schema = kept.pop("input_schema", None)
    if not isinstance(schema, Mapping):
        path = f"{where}.input_schema"
        raise ApiError(400, f"{path} must be a JSON schema, an object", param=path)
    return {**kept, "type": "function", "parameters": schema}


def _with_own_ids(message: dict[str, Any]) -> dict[str, Any]:
    """A message whose calls have the ids that the model's form gave them."""
    if not isinstance(content := message.get("content"), list):
        return message
    return {**message, "content": [_with_own_id(block) for block in content]}


def _with_own_id(block: Any) -> Any:
    if not isinstance(block, Mapping) or block.get("type") not in ("tool_use", "tool_result"):
        return block
    name = "id" if block["type"] == "tool_use" else "tool_use_id"
    given = block.get(name)
    return {**block, name: given.removeprefix(CALL_PREFIX)} if isinstance(given, str) else block
