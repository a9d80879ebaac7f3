"""Makes a prompt of token ids and media from a conversation, by the adapter's hooks or the chat template.

Knows the model's tokenizer and hooks, and which special tokens stay text; knows neither requests nor how items are
processed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from typing import Any, Literal

from corellm.config import suggestion
from corellm.errors import InvalidParameterError, PromptError
from corellm.hookspecs import ChatPrompt
from corellm.multimodal.chat.continuing import cut_at_end, mark_end
from corellm.multimodal.chat.guarding import Guard, pieces, unguarded
from corellm.multimodal.chat.joining import join_chat
from corellm.multimodal.chat.messages import Guards, collect_uuids, media_parts, normalize_messages
from corellm.multimodal.chat.rendering import RESERVED_VARIABLES
from corellm.multimodal.item_limits import check_modality
from corellm.multimodal.processor import MultiModalProcessor
from corellm.plugin.hook_callers import HookCallers
from corellm.sampling_params import shown

AllowedSpecial = Collection[str] | Literal["all"]
"""Special tokens that stay tokens in a message's text."""


@dataclass(frozen=True)
class ChatOptions:
    """The arguments of `LLM.chat` that say how a conversation becomes a prompt."""

    chat_template: str | None = None
    """Jinja, instead of the checkpoint's."""
    add_generation_prompt: bool | None = None
    """Whether to end with the start of the assistant's turn; None for yes, unless the last message is continued."""
    continue_final_message: bool = False
    """Whether to end within the last message, for the model to go on with it."""
    tools: Sequence[Any] | None = None
    """JSON schemas, or Python functions with type hints and a docstring, for the template."""
    chat_template_kwargs: Mapping[str, Any] | None = None
    """Further variables for the template."""
    allowed_special: AllowedSpecial = ()
    """Special tokens that stay tokens in any message's text, `"all"` for all except placeholders of items."""
    max_window_size: int | None = None
    """Most tokens of the prompt, placeholders expanded: the oldest turns are left out until it fits."""

    @property
    def begins_a_turn(self) -> bool:
        """Whether the prompt ends with the start of the assistant's turn."""
        if self.add_generation_prompt is None:
            return not self.continue_final_message
        return bool(self.add_generation_prompt)

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> ChatOptions:
        """The options of a call.

        Raises:
            InvalidParameterError: an unknown argument, or a wrong value.
        """
        known = [option.name for option in fields(cls)]
        unknown = sorted(arguments.keys() - set(known))
        if unknown:
            raise InvalidParameterError(
                f"chat has no argument {unknown[0]!r}{suggestion(unknown[0], known)}", param=unknown[0]
            )
        return cls(**arguments)

    def __post_init__(self) -> None:
        if self.add_generation_prompt and self.continue_final_message:
            raise InvalidParameterError(
                "add_generation_prompt begins a new turn and continue_final_message goes on with the last one; "
                "give one of them",
                param="continue_final_message",
            )
        given = self.chat_template_kwargs or {}
        if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
            raise InvalidParameterError(
                f"chat_template_kwargs must be a dict with strings for keys, got {given!r:.100}",
                param="chat_template_kwargs",
            )
        taken = sorted(RESERVED_VARIABLES & given.keys())
        if taken:
            raise InvalidParameterError(
                f"chat_template_kwargs cannot set {taken[0]!r}; give it as an argument of its own",
                param="chat_template_kwargs",
            )
        if self.chat_template is not None and not isinstance(self.chat_template, str):
            raise InvalidParameterError(
                f"chat_template must be a Jinja template as text, got {self.chat_template!r:.100}",
                param="chat_template",
            )
        window = self.max_window_size
        if window is not None and (isinstance(window, bool) or not isinstance(window, int) or window < 1):
            raise InvalidParameterError(
                f"max_window_size must be an integer of at least 1, got {shown(window)}", param="max_window_size"
            )


@dataclass
class RenderedChat:
    """A conversation as a prompt."""

    text: str | None
    """None where the adapter makes token ids directly."""
    token_ids: list[int]
    mm_data: dict[str, Any]
    uuids: dict[str, list[Any]]
    is_open: bool = False
    """Whether it ends within a message, which the model goes on with."""


class ChatProcessor:
    """Makes prompts of conversations for one loaded model. Safe to call from several threads.

    Args:
        tokenizer: the model's.
        tokenize: text to token ids, nothing added.
        check_length: raises if a text is too long to be tokenized at all.
        added_tokens: returns the special tokens that the tokenizer puts before and after every text.
        hooks: the model's hook callers.
        mm_processor: the model's multimodal processor.
        max_model_len: of the engine; families that shorten conversations keep to it.
    """

    def __init__(
        self,
        tokenizer: Any,
        tokenize: Callable[[str], list[int]],
        check_length: Callable[[str], None],
        added_tokens: Callable[[], tuple[list[int], list[int]]],
        hooks: HookCallers,
        mm_processor: MultiModalProcessor,
        *,
        max_model_len: int,
    ) -> None:
        self._tokenizer, self._tokenize, self._check_length = tokenizer, tokenize, check_length
        self._added_tokens = added_tokens
        self._hooks, self._mm_processor = hooks, mm_processor
        self._max_model_len = max_model_len
        self._guards = lru_cache(maxsize=16)(self._make_guards)

    def normalized(self, messages: Any, options: ChatOptions) -> list[dict[str, Any]]:
        """Return normalized messages, their text guarded: special tokens that users typed stay text.

        Args:
            messages: as a client sends them.
            options: how to render.

        Raises:
            PromptError: malformed messages.
            InvalidParameterError: the options do not fit the model.
            UnsupportedModalityError: the model does not take a part's modality.
        """
        normalized = normalize_messages(messages, self._guards(self._allowed(options.allowed_special)))
        for part in media_parts(normalized):
            check_modality(part["type"], self._mm_processor.limits)
        return normalized

    def render(
        self, normalized: Sequence[Mapping[str, Any]], options: ChatOptions, chat_template: str | None
    ) -> RenderedChat:
        """Return the prompt of a conversation.

        Args:
            normalized: messages.
            options: how to render.
            chat_template: the checkpoint's, or None.

        Raises:
            PromptError: no way to place the messages' media, or a template that refuses them.
            InvalidParameterError: the options do not fit the model.
        """
        guards = self._guards(self._allowed(options.allowed_special))
        template = options.chat_template or chat_template
        if template is None and (options.tools or options.chat_template_kwargs):
            name = "tools" if options.tools else "chat_template_kwargs"
            raise InvalidParameterError(
                f"{name}: this model has no chat template to pass them to; give one (chat_template)", param=name
            )
        chat: ChatPrompt = self._make_context(
            mark_end(normalized) if options.continue_final_message else normalized,
            max_window_size=min(options.max_window_size or self._max_model_len, self._max_model_len),
            add_generation_prompt=options.begins_a_turn,
            chat_template=template,
            tools=_tool_schemas(options.tools, guards.operator),
            chat_template_kwargs={
                name: (guards.others if name == "documents" else guards.operator).value(value, name)
                for name, value in (options.chat_template_kwargs or {}).items()
            },
        )
        if options.continue_final_message:
            chat = cut_at_end(chat, normalized)
        mm_data, uuids = dict(chat.mm_data), collect_uuids(normalized, chat.mm_data)
        if isinstance(chat.prompt, str):
            text = unguarded(chat.prompt)
            self._check_length(text)
            tokens = self._tokenize_guarded(chat.prompt)
            return RenderedChat(text, tokens, mm_data, uuids, options.continue_final_message)
        return RenderedChat(None, chat.prompt, mm_data, uuids)

    def _make_context(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> ChatPrompt:
        chat: ChatPrompt | None = self._hooks.make_context(messages=messages, **options)
        if chat is not None:
            return chat
        return join_chat(
            messages,
            lambda modality, index: self._hooks.get_placeholder_str(modality=modality, index=index),
            add_generation_prompt=options["add_generation_prompt"],
        )

    def _tokenize_guarded(self, prompt: str) -> list[int]:
        """Tokenize a rendered conversation: in pieces between guards, with the tokenizer's own special tokens once."""
        ids = [token for piece in pieces(prompt) for token in self._tokenize(piece)]
        bos = self._tokenizer.bos_token
        if bos is not None and prompt.startswith(bos):
            return ids
        prefix, suffix = self._added_tokens()
        return [*prefix, *ids, *suffix]

    # --- what stays text --------------------------------------------------------------------------------------------

    def _allowed(self, allowed: AllowedSpecial) -> frozenset[str]:
        """The special tokens that stay tokens, checked."""
        if allowed == "all":
            return self._special_literals
        is_list = isinstance(allowed, Collection) and not isinstance(allowed, (str, bytes, Mapping))
        if not is_list or not all(isinstance(token, str) for token in allowed):
            raise InvalidParameterError(
                f'allowed_special must be a list of special tokens or "all", got {allowed!r:.100}',
                param="allowed_special",
            )
        for token in allowed:
            if token in self._placeholder_literals:
                raise InvalidParameterError(
                    f"allowed_special: {token!r:.100} stands for an item; items are given as parts of a message",
                    param="allowed_special",
                )
            if token not in self._special_literals:
                raise InvalidParameterError(
                    f"allowed_special: {token!r:.100} is no special token of this model; leave it out",
                    param="allowed_special",
                )
        return frozenset(allowed)

    def _make_guards(self, allowed: frozenset[str]) -> Guards:
        placed = Guard(self._placeholder_literals)
        return Guards(others=Guard(self._placeholder_literals | (self._special_literals - allowed)), operator=placed)

    @cached_property
    def _special_literals(self) -> frozenset[str]:
        """Strings that tokenize to special tokens."""
        special = {str(token) for token in self._tokenizer.added_tokens_decoder.values() if token.special}
        return frozenset(filter(str.strip, {*special, *self._tokenizer.all_special_tokens}))

    @cached_property
    def _placeholder_literals(self) -> frozenset[str]:
        """Strings that tokenize to placeholders of items or tokens around them, before or after expansion."""
        profile = self._mm_processor.profile
        hooks, modalities = self._hooks, profile.max_tokens
        texts = {hooks.get_dummy_text(mm_counts={modality: 1}) for modality in modalities}
        texts |= {hooks.get_placeholder_str(modality=modality, index=0) or "" for modality in modalities}
        token_ids = {token for text in texts if text for token in self._tokenize(text)}
        around = {token for added in self._added_tokens() for token in added}
        token_ids |= {token for prompt in profile.prompts for token in prompt} - around
        added = self._tokenizer.get_added_vocab()
        placed = {literal for literal, token in added.items() if token in token_ids}
        placed |= set(self._tokenizer.convert_ids_to_tokens(list(profile.placeholder_token_ids)))
        placed.discard(None)  # a placeholder that only the model's configuration knows cannot be typed
        return frozenset(filter(str.strip, placed))


def _tool_schemas(tools: Sequence[Any] | None, guard: Guard) -> list[Any] | None:
    """Tools as JSON schemas; functions are described by their type hints and docstring, as transformers does it.

    Raises:
        InvalidParameterError: a tool is neither, or a function lacks type hints or a docstring.
    """
    if tools is None:
        return None
    if isinstance(tools, (str, bytes, Mapping)) or not isinstance(tools, Sequence):
        raise InvalidParameterError(f"tools must be a list of schemas or functions, got {tools!r:.100}", param="tools")
    schemas = []
    for i, tool in enumerate(tools):
        if inspect.isfunction(tool) or inspect.ismethod(tool):
            schema = _function_schema(tool, f"tools[{i}]")
        elif isinstance(tool, Mapping):
            schema = tool
        else:
            raise InvalidParameterError(
                f"tools[{i}] must be a JSON schema or a Python function, got {tool!r:.100}", param="tools"
            )
        try:
            schemas.append(guard.value(schema, f"tools[{i}]"))
        except PromptError as error:
            raise InvalidParameterError(str(error), param="tools") from None
    return schemas


def _function_schema(function: Callable[..., Any], where: str) -> Any:
    from transformers.utils.chat_template_utils import (
        DocstringParsingException,
        TypeHintParsingException,
        get_json_schema,
    )

    try:
        return get_json_schema(function)
    except (DocstringParsingException, TypeHintParsingException, ValueError) as error:
        raise InvalidParameterError(f"{where}: {' '.join(str(error).split())}", param="tools") from error
