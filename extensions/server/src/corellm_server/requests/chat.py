"""The body of `/v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import WithJsonSchema

from corellm.known_fields import Absent
from corellm_server.conversation import messages_schema
from corellm_server.requests.body import FIRST_ERROR, Body
from corellm_server.requests.sampling import CompletionFields

NO_TOOLS = "models cannot be given tools yet; describe them in a message and read the text"
NO_GUIDES = "outputs cannot be held to a format yet; state it in a message and check the output"
_TEXT_ONLY = "models generate text only"


Messages = Annotated[list[dict[str, Any]], FIRST_ERROR, WithJsonSchema(messages_schema())]
"""Messages that are checked later, by `check_messages`."""


class TemplateFields(Body):
    """How a conversation becomes a prompt."""

    FIELD: ClassVar[str] = "messages"
    """The field that has the conversation, for errors."""

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
    def num_instructions(self) -> int:
        """How many messages come before those of the field."""
        return 0

    @property
    def num_reserved(self) -> int | None:
        """Tokens that the oldest turns are left out for, so that the output has room; None to refuse instead."""
        return None


class Conversation(TemplateFields):
    """A conversation, and how it becomes a prompt."""

    messages: Messages
    """The conversation: roles, and content as text or parts."""


class ChatRequest(Conversation, CompletionFields):
    """`POST /v1/chat/completions`."""

    IGNORED: ClassVar[Mapping[str, str]] = {
        "add_special_tokens": "whether the tokenizer's special tokens go before a template's; they are there once",
        "metadata": "labels of stored completions",
        "parallel_tool_calls": "several tool calls at once",
        "prompt_cache_key": "which cache to use; equal prefixes always share",
        "prompt_cache_options": "how to use a cache",
        "prompt_cache_retention": "how long a prefix is cached",
        "reasoning_effort": "how long to think",
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
        "function_call": Absent(("none", "auto"), NO_TOOLS),
        "functions": Absent(([],), NO_TOOLS),
        "include_reasoning": Absent((True,), "reasoning is not told apart from the output; split its text yourself"),
        "modalities": Absent((["text"],), _TEXT_ONLY),
        "moderation": Absent((), "nothing is moderated"),
        "prediction": Absent((), "predicted outputs are not used"),
        "response_format": Absent(({"type": "text"},), NO_GUIDES),
        "tool_choice": Absent(("none", "auto"), NO_TOOLS),
        "tools": Absent(([],), NO_TOOLS),
        "web_search_options": Absent((), "there is no web search"),
        "guided_json": Absent((), NO_GUIDES),
        "guided_regex": Absent((), NO_GUIDES),
        "guided_choice": Absent((), NO_GUIDES),
        "guided_grammar": Absent((), NO_GUIDES),
        "structured_outputs": Absent((), NO_GUIDES),
    }

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
