"""The body of `/v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from corellm.server.requests.body import Body
from corellm.server.requests.sampling import SamplingFields

_NO_TOOLS = "models cannot be given tools yet; describe them in a message and read the text"
_NO_GUIDES = "outputs cannot be held to a format yet; state it in a message and check the output"
_TEXT_ONLY = "models generate text only"


class Conversation(Body):
    """A conversation, and how it becomes a prompt."""

    messages: list[dict[str, Any]]
    """The conversation: roles, and content as text or parts."""
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


class ChatRequest(Conversation, SamplingFields):
    """`POST /v1/chat/completions`."""

    IGNORED: ClassVar[Mapping[str, str]] = {
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
    REFUSED: ClassVar[Mapping[str, tuple[Sequence[Any], str]]] = {
        "audio": ((), _TEXT_ONLY),
        "function_call": (("none", "auto"), _NO_TOOLS),
        "functions": (([],), _NO_TOOLS),
        "modalities": ((["text"],), _TEXT_ONLY),
        "moderation": ((), "nothing is moderated"),
        "prediction": ((), "predicted outputs are not used"),
        "response_format": (({"type": "text"},), _NO_GUIDES),
        "tool_choice": (("none", "auto"), _NO_TOOLS),
        "tools": (([],), _NO_TOOLS),
        "web_search_options": ((), "there is no web search"),
        "guided_json": ((), _NO_GUIDES),
        "guided_regex": ((), _NO_GUIDES),
        "guided_choice": ((), _NO_GUIDES),
        "guided_grammar": ((), _NO_GUIDES),
        "structured_outputs": ((), _NO_GUIDES),
    }

    max_completion_tokens: int | None = None
    """Most tokens to generate; replaces `max_tokens`."""
    logprobs: bool | None = None
    """Report log-probabilities."""
    top_logprobs: int | None = None
    """Of how many most likely tokens; with `logprobs`."""
