"""The body of `/v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import WithJsonSchema

from corellm.known_fields import Absent
from corellm_server.conversation import messages_schema
from corellm_server.errors import ApiError
from corellm_server.requests.body import FIRST_ERROR, Body
from corellm_server.requests.sampling import CompletionFields

_USE_TOOLS = "functions are given as tools"
_TEXT_ONLY = "models generate text only"


BUDGET = "thinking_token_budget"
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Messages = Annotated[list[dict[str, Any]], FIRST_ERROR, WithJsonSchema(messages_schema())]
"""Messages that are checked later, by `check_messages`."""


class TemplateFields(Body):
    """How a conversation becomes a prompt."""

    FIELD: ClassVar[str] = "messages"
    PARAMETERS: ClassVar[str] = "parameters"
    """What the schema of a tool's arguments is called."""
    """The field that has the conversation, for errors."""
    JOINS_TURNS: ClassVar[bool] = False
    """Whether neighbours of the same role are one turn."""

    add_generation_prompt: bool | None = None
    """Whether to end with the start of the assistant's turn; by default yes."""
    continue_final_message: bool | None = None
    """Whether the output goes on with the last message."""
    chat_template: str | None = None
    """A Jinja template; refused unless the server allows it."""
    chat_template_kwargs: dict[str, Any] | None = None
    """Variables of the template; those that the server allows."""
    mm_processor_kwargs: dict[str, Any] | None = None
    """Arguments of the model's processor; those that the server allows."""
    max_window_size: int | None = None
    """Most tokens of the prompt: the oldest turns are left out until it fits."""

    @property
    def is_kept(self) -> bool:
        """Whether the conversation has earlier turns that are kept, with negative numbers, or may become one."""
        return False

    @property
    def turns(self) -> list[dict[str, Any]]:
        """The conversation as chat's messages.

        Raises:
            ApiError: something that no message can have; names it.
        """
        raise NotImplementedError

    @property
    def numbers(self) -> Sequence[int] | None:
        """Which of the field's elements each message comes from; None where they are the messages."""
        return None

    @property
    def is_begun(self) -> bool:
        """Whether the output goes on with the last message."""
        return self.continue_final_message is True or self.turns[-1].get("prefix") is True

    @property
    def effort(self) -> str | None:
        """How long to think; None if the request does not say."""
        return None

    @property
    def thinks(self) -> bool | None:
        """Whether to think; None if the request does not say."""
        return False if self.effort == "none" else None

    @property
    def thinking_budget(self) -> int | None:
        """Most tokens of reasoning; None for no bound.

        Raises:
            ApiError: it is no number of tokens.
        """
        budget: int | None = getattr(self, BUDGET, None)
        if budget is not None and budget < -1:
            raise ApiError(400, f"{BUDGET} must be at least 0, or -1 for no bound; got {budget}", param=BUDGET)
        return None if budget == -1 else budget

    @property
    def num_reserved(self) -> int | None:
        """Tokens that the oldest turns are left out for, so that the output has room; None to refuse instead."""
        return None


class Conversation(TemplateFields):
    """A conversation, and how it becomes a prompt."""

    messages: Messages
    """The conversation: roles, and content as text or parts."""

    @property
    def turns(self) -> list[dict[str, Any]]:
        """The conversation as it is."""
        return self.messages


class ChatRequest(Conversation, CompletionFields):
    """`POST /v1/chat/completions`."""

    IGNORED: ClassVar[Mapping[str, str]] = {
        "add_special_tokens": "whether the tokenizer's special tokens go before a template's; they are there once",
        "metadata": "labels of stored completions",
        "prompt_cache_key": "which cache to use; equal prefixes always share",
        "prompt_cache_options": "how to use a cache",
        "prompt_cache_retention": "how long a prefix is cached",
        "safety_identifier": "whose request it is",
        "service_tier": "how fast and how expensive",
        "store": "whether to keep the completion; nothing is kept",
        "user": "whose request it is",
        "verbosity": "how much to write",
    }
    REFUSED: ClassVar[Mapping[str, Absent]] = {
        **CompletionFields.REFUSED,
        "audio": Absent((), _TEXT_ONLY),
        "echo": Absent((False,), "an output goes on with the last message by continue_final_message"),
        "function_call": Absent(("none", "auto"), f"{_USE_TOOLS}, and chosen by tool_choice"),
        "functions": Absent(([],), _USE_TOOLS),
        "modalities": Absent((["text"],), _TEXT_ONLY),
        "moderation": Absent((), "nothing is moderated"),
        "prediction": Absent((), "predicted outputs are not used"),
        "web_search_options": Absent((), "there is no web search"),
    }

    tools: Annotated[list[Any], FIRST_ERROR] | None = None
    """Functions that the model may call, with JSON schemas of their arguments; the client runs them."""
    tool_choice: str | dict[str, Any] | None = None
    """`auto`, `none` for a model that is not told of the tools, `required`, or an object that names one to call."""
    parallel_tool_calls: bool | None = None
    """Whether a reply may have several calls; if not, all but the first are left out."""
    reasoning_effort: Effort | None = None
    """How long to think, for templates that take it; `none` also for those that take `enable_thinking`."""
    thinking_token_budget: int | None = None
    """Most tokens of reasoning, whose end is written then; -1 for no bound."""
    include_reasoning: bool | None = None
    """Whether to report what the model thought; by default yes."""
    max_completion_tokens: int | None = None
    """Most tokens to generate; replaces `max_tokens`."""
    logprobs: bool | None = None
    """Report log-probabilities."""
    top_logprobs: int | None = None
    """Report log-probabilities of this many most likely tokens, too; with `logprobs`."""
    prompt_logprobs: int | None = None
    """Report log-probabilities of the prompt's tokens, of this many most likely ones each; not with `stream`."""
    return_token_ids: bool | None = None
    """Report the token ids of the prompt and of the output."""

    @property
    def effort(self) -> str | None:
        """How long to think; None if the request does not say."""
        return self.reasoning_effort
