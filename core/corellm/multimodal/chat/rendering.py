"""A conversation as text by a chat template, in the form of content that the template takes.

Some templates iterate over content parts, others take content as text, some either by role; each template is probed
once. Knows no model family; `templates.renderer` runs the template.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from corellm.errors import PromptError
from corellm.hookspecs import ChatPrompt
from corellm.multimodal.chat.fields import OPERATOR_ROLES
from corellm.multimodal.chat.guarding import unguarded
from corellm.multimodal.chat.joining import Placeholder, with_text
from corellm.multimodal.chat.messages import collect_media
from corellm.templates.renderer import Render, TemplateRefusalError, TemplateRenderer

logger = logging.getLogger(__name__)

RESERVED_VARIABLES = frozenset(
    {"messages", "tools", "add_generation_prompt", "continue_final_message", "chat_template", "tokenize"}
)
"""Names of a call's own arguments, which template arguments must not replace."""

_PROBE = "corellm-probe"
_FORM_OF_PARTS = re.compile(r"""["']type\\*["']""")
_MAX_KNOWN_TEMPLATES = 64


class ChatRenderer:
    """Renders conversations by chat templates.

    Args:
        tokenizer: templates may write its special tokens.
        templates: runs the templates.
    """

    def __init__(self, tokenizer: Any, templates: TemplateRenderer) -> None:
        self._tokenizer = tokenizer
        self._templates = templates
        self._forms: dict[str, _Forms] = {}

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        template: str,
        placeholder: Placeholder,
        *,
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> ChatPrompt:
        """Return the prompt and the media of a conversation. Where content is text, media are placeholder strings.

        Args:
            messages: normalized.
            template: Jinja source.
            placeholder: returns them.
            add_generation_prompt, tools: for the template.
            variables: all other template arguments.

        Raises:
            PromptError: the template refuses the conversation, is broken or does not end; or there is no placeholder
                string.
        """
        forms = self._forms_of(template)
        with self._templates.session() as render:
            forms.find(render, self._variables([]), {message["role"] for message in messages})
            if any("tool_calls" in message for message in messages):
                forms.find_arguments(render, self._variables([]))
            as_text = with_text([m for m in messages if m["role"] not in forms.in_parts], placeholder)
            conversation = [_with_parts(m) if m["role"] in forms.in_parts else as_text.pop(0) for m in messages]
            if forms.arguments_are_text:
                conversation = [_with_arguments(message, _as_text) for message in conversation]
            elif forms.arguments_are_objects:
                conversation = [_with_arguments(message, _as_object) for message in conversation]
            given = self._variables(conversation) | {"tools": tools, "add_generation_prompt": add_generation_prompt}
            try:
                prompt = render(template, given | dict(variables or {}))
            except TemplateRefusalError as error:
                raise PromptError(unguarded(str(error))) from None
            return ChatPrompt(prompt, collect_media(messages))

    def _variables(self, messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Template variables of a conversation without tools, named as in transformers."""
        special = {name: str(token) for name, token in self._tokenizer.special_tokens_map.items()}
        return {**special, "messages": messages, "tools": None, "documents": None, "add_generation_prompt": False}

    def _forms_of(self, template: str) -> _Forms:
        if template not in self._forms and len(self._forms) >= _MAX_KNOWN_TEMPLATES:
            self._forms.clear()
        return self._forms.setdefault(template, _Forms(template))


class _Forms:
    """Which forms of a conversation a template takes, as far as it was probed."""

    def __init__(self, template: str) -> None:
        self.in_parts: set[str] = set()
        """Roles whose content it takes as parts."""
        self.arguments_are_text = False
        """Whether a tool call's arguments must be JSON text; most templates take an object."""
        self.arguments_are_objects = False
        """Whether they must be an object."""
        self._template = template
        self._known: set[str] = set()

    def find(self, render: Render, variables: Mapping[str, Any], roles: Collection[str]) -> None:
        """Probe some roles: a template that takes parts renders their text, and nothing of their dictionaries."""
        for role in ("user", *sorted(set(roles) - {"user"})):
            if role not in self._known:
                rendered = self._try(render, variables, self._conversation(role))
                if rendered is not None and _PROBE in rendered and not _FORM_OF_PARTS.search(rendered):
                    self.in_parts.add(role)
                self._known.add(role)

    def _conversation(self, role: str) -> list[dict[str, Any]]:
        """A conversation that ends with a message of `role` in parts; a user's message follows a system's."""
        probed = {"role": role, "content": [_text(_PROBE)]}
        if role == "user":
            return [probed]
        user = self._message("user", "x")
        return [probed, user] if role in OPERATOR_ROLES else [user, probed]

    def _message(self, role: str, text: str) -> dict[str, Any]:
        return {"role": role, "content": [_text(text)] if role in self.in_parts else text}

    def find_arguments(self, render: Render, variables: Mapping[str, Any]) -> None:
        """Probe tool calls: whether objects are refused and text is not, or the reverse."""
        if "tool_calls" in self._known:
            return
        refuses = [
            self._try(render, variables, self._tool_call(arguments)) is None
            for arguments in ({_PROBE: 1}, json.dumps({_PROBE: 1}))
        ]
        self.arguments_are_text, self.arguments_are_objects = refuses == [True, False], refuses == [False, True]
        self._known.add("tool_calls")

    def _tool_call(self, arguments: Any) -> list[dict[str, Any]]:
        call = {"id": "callprobe", "type": "function", "function": {"name": "probe", "arguments": arguments}}
        return [self._message("user", "x"), {**self._message("assistant", ""), "tool_calls": [call]}]

    def _try(self, render: Render, variables: Mapping[str, Any], messages: Any) -> str | None:
        try:
            return render(self._template, {**variables, "messages": messages})
        except TemplateRefusalError as error:
            logger.debug("probe refused: %s", error)
            return None


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _with_parts(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message whose media parts have True for media: templates test a part's type or its key."""
    parts = [p if p["type"] == "text" else {"type": p["type"], p["type"]: True} for p in message["content"]]
    return {**message, "content": parts}


def _with_arguments(message: dict[str, Any], make: Callable[[Any], Any]) -> dict[str, Any]:
    """A message whose tool calls have their arguments in another form."""
    if not isinstance(message.get("tool_calls"), list):
        return message
    return {**message, "tool_calls": [_remade(call, make) for call in message["tool_calls"]]}


def _remade(call: Any, make: Callable[[Any], Any]) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or "arguments" not in function:
        return call
    return {**call, "function": {**function, "arguments": make(function["arguments"])}}


def _as_text(arguments: Any) -> Any:
    return json.dumps(arguments, ensure_ascii=False) if isinstance(arguments, dict) else arguments


def _as_object(arguments: Any) -> Any:
    """Arguments that are text still are no JSON: the model was cut off, or erred."""
    return {"arguments": arguments} if isinstance(arguments, str) else arguments
