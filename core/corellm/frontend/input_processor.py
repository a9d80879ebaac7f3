"""Prepares prompts that the engine can schedule: chat to prompt, text to tokens, items to tensors.

Whatever is wrong with a prompt is refused here, before the engine gets the request. Safe to call from several threads;
knows no scheduler and no worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from corellm.config import suggestion
from corellm.errors import (
    ContractError,
    InvalidParameterError,
    MultiModalError,
    PromptError,
    PromptTooLongError,
)
from corellm.frontend.bad_words import word_sequences
from corellm.frontend.chat_processor import ChatOptions, ChatProcessor, RenderedChat
from corellm.frontend.conversation_limit import Messages, numbered_in, refusal, renumber, shortenings
from corellm.frontend.prompt_key import DISTRIBUTIONS, NO_KEYS, PromptKey, way_out
from corellm.frontend.stated_parts import part_of_prompt, states_parts
from corellm.frontend.text_limit import TextLimit
from corellm.frontend.text_tokenizer import TextTokenizer
from corellm.hookspecs import DecoderPrompt, SpeechForm
from corellm.multimodal.chat import collect_media
from corellm.multimodal.chat.continuing import is_begun, num_appended
from corellm.multimodal.hook_results import adapter_errors, call_hook
from corellm.multimodal.inputs import MultiModalFeature
from corellm.multimodal.item_limits import check_counts
from corellm.multimodal.processor import MultiModalProcessor
from corellm.plugin.hook_callers import HookCallers
from corellm.prompts import is_token_ids, is_unicode, plain_token_ids
from corellm.sampling.extensions import NO_EXTENSIONS, SamplingExtensions
from corellm.sampling_params import SamplingParams, shown
from corellm.scheduling.request_part import PLAIN, RequestPart
from corellm.templates.renderer import MAX_CHARS

if TYPE_CHECKING:
    from corellm.loading.attended_states import AttendedStates

PROMPT_KEYS = frozenset(
    {
        "prompt", "prompt_token_ids", "multi_modal_data", "mm_processor_kwargs", "multi_modal_uuids",
        "cache_salt", "priority",
    }
)  # fmt: skip
"""Keys of a prompt given as a dictionary."""
_PREPARING = "preparing the prompt"


@dataclass
class ProcessedPrompt:
    """A prompt the engine can schedule."""

    text: str | None
    token_ids: list[int]
    """Placeholders expanded."""
    features: list[MultiModalFeature] = field(default_factory=list)
    cache_salt: str | None = None
    priority: int = 0
    decoder: DecoderPrompt | None = None
    """What the decoder begins with, where `token_ids` have an encoder of their own."""
    extra: dict[str, Any] = field(default_factory=dict)
    """What extensions read of their own keys, by key: plain data, which goes to other processes."""

    @property
    def own_token_ids(self) -> list[int]:
        """The tokens of the sequence that the engine runs."""
        return self.token_ids if self.decoder is None else list(self.decoder.token_ids)


class InputProcessor:
    """Prepares prompts for one loaded model.

    A subclass for prompts of another kind has their keys in `prompt_keys`, and overrides `process_fields` or
    `encode_text`.

    Args:
        tokenizer: the model's.
        hooks: the model's hook callers.
        mm_processor: the model's multimodal processor.
        vocab_size: width of the logits; token ids in sampling parameters must be below.
        embedding_size: token ids in prompts must be below, except those of placeholders.
        chat_template: the checkpoint's, or None.
        max_model_len: of the engine; families that shorten conversations keep to it.
        scheduling_policy: of the engine; requests may have a priority under `"priority"` only.
        remote_media: fetches what conversations name by URL (`offer_fetching`); None for no URLs.
        extensions: what requests may have of them in sampling.
        extensions_keys: keys of prompts that extensions read.
        parsers: forms of the model's outputs that its adapter states, `{attribute: name}`; for servers.
        attended: states that the decoder attends to beside its own tokens; None for none.

    Raises:
        ContractError: an extension reads a key that prompts have already.
    """

    prompt_keys: frozenset[str] = PROMPT_KEYS
    takes_empty_texts = False
    """Whether a text may be empty, if the tokenizer adds special tokens."""

    def __init__(
        self,
        tokenizer: Any,
        hooks: HookCallers,
        mm_processor: MultiModalProcessor,
        *,
        vocab_size: int,
        embedding_size: int,
        max_model_len: int,
        chat_template: str | None = None,
        scheduling_policy: str = "fcfs",
        remote_media: Any | None = None,
        extensions: SamplingExtensions = NO_EXTENSIONS,
        extensions_keys: Mapping[str, PromptKey] = NO_KEYS,
        parsers: Mapping[str, str] = MappingProxyType({}),
        attended: AttendedStates | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self._hooks, self._attended = hooks, attended
        self._states_parts = states_parts(hooks, attended)
        self.prompt_room = None if attended is None else attended.prompt_room
        """Most tokens of a prompt that has an encoder of its own; None where prompts are the decoder's."""
        self.mm_processor = mm_processor
        self.text_tokenizer = TextTokenizer(tokenizer)
        # where an encoder reads an item alone, the text is the decoder's
        self.text_limit = TextLimit(self.text_tokenizer.backend, max_model_len + (self.prompt_room or 0))
        self.vocab_size = vocab_size
        self.embedding_size = embedding_size
        self._chat = ChatProcessor(
            tokenizer,
            self.tokenize,
            self.text_limit.check,
            lambda: self._added_tokens,
            hooks,
            mm_processor,
            max_model_len=self.prompt_room or max_model_len,
        )
        self.chat_template, self.parsers = chat_template, parsers
        self._scheduling_policy = scheduling_policy
        self._remote_media = remote_media
        self._extensions = extensions
        if taken := sorted(self.prompt_keys & extensions_keys.keys()):
            raise ContractError(f"an extension reads the prompt key {taken[0]!r}, which has a meaning already")
        self._extensions_keys = extensions_keys
        self.prompt_keys = self.prompt_keys | extensions_keys.keys()

    def close(self) -> None:
        """End the threads and processes that read items."""
        self.mm_processor.close()
        if self._remote_media is not None:
            self._remote_media.close()

    # --- prompts ----------------------------------------------------------------------------------------------------

    def process(
        self, prompt: Any, *, priority: int | None = None, prompt_keys: Mapping[str, Any] | None = None
    ) -> ProcessedPrompt:
        """Prepare a prompt: text, token ids, `{"prompt": ...}` or `{"prompt_token_ids": ...}`, with media beside it.

        Args:
            prompt: as above; ids in a list, an array or a tensor. One that was prepared is returned as it is.
            priority: replaces the prompt's own, unless None.
            prompt_keys: keys that extensions read, with their values; they replace the prompt's own.

        Raises:
            InvalidParameterError: `prompt_keys` are wrong, or given for a prompt that is prepared.
            PromptError: malformed, empty, or with token ids the model does not know.
            MultiModalError: an item is wrong.
            ProcessingError: the adapter, or a library behind it, raised.
        """
        if isinstance(prompt, ProcessedPrompt):
            if unknown := sorted(prompt.extra.keys() - self._extensions_keys.keys()):
                raise PromptError(f"the prompt was prepared with the key {unknown[0]!r}, which is unknown here")
            if prompt_keys:
                raise InvalidParameterError(f"{min(prompt_keys)}: the prompt is prepared; prepare it with this key")
            return prompt
        keys = {} if prompt_keys is None else self._checked_keys(prompt_keys)
        with adapter_errors(_PREPARING):
            fields = {**self._fields(prompt), **keys} if keys else self._fields(prompt)
            extra = {
                name: key.read(fields[name])
                for name, key in self._extensions_keys.items()
                if fields.get(name) is not None
            }
            processed = self.process_fields(fields if priority is None else {**fields, "priority": priority})
            if extra:
                processed.extra |= extra
                variants = (self._extensions_keys[name].variant(read) for name, read in extra.items())
                variant = "-".join(filter(None, variants))
                processed.features = [feature.of_variant(variant) for feature in processed.features]
            return processed

    def process_fields(self, fields: Mapping[str, Any]) -> ProcessedPrompt:
        """Prepare a prompt that is a dictionary with known keys; errors as of `process`."""
        mm_data = fields.get("multi_modal_data") or {}
        if not isinstance(mm_data, Mapping):
            raise PromptError(f'multi_modal_data must be like {{"image": image}}, got {mm_data!r:.100}')
        for name in ("mm_processor_kwargs", "multi_modal_uuids"):
            given = fields.get(name)
            if given and not isinstance(given, Mapping):
                raise PromptError(f"{name} must be a dict, got {given!r:.100}")
            if given and not all(isinstance(key, str) for key in given):
                raise PromptError(f"{name} must be a dict with strings for keys")
        text = fields.get("prompt")
        token_ids = self._token_ids(fields)
        if not mm_data and ((text == "" and not self.takes_empty_texts) or not token_ids):
            raise PromptError("the prompt is empty; write at least one character, or give an item")
        salt, priority = fields.get("cache_salt"), fields.get("priority", 0)
        if salt is not None and not (isinstance(salt, str) and salt and is_unicode(salt)):
            raise PromptError(f"cache_salt must be a non-empty string of valid Unicode, got {salt!r:.100}")
        if "priority" in fields:
            self._check_priority(priority)
        expanded, features = self.mm_processor.process(
            token_ids, mm_data, fields.get("mm_processor_kwargs"), fields.get("multi_modal_uuids"), salt
        )
        if not expanded:
            raise PromptError("the prompt is empty; write at least one character, or give an item")
        decoder = None if self._attended is None else self._attended.decoder_prompt(expanded, features, self.known)
        return ProcessedPrompt(text, expanded, features, salt, priority, decoder)

    def part_of(self, processed: ProcessedPrompt) -> RequestPart:
        """Return what features and extensions make of a request with this prompt.

        Raises:
            ContractError, ProcessingError: the adapter or an extension is at fault.
        """
        part = part_of_prompt(self._hooks, self._attended, processed) if self._states_parts else PLAIN
        with adapter_errors(_PREPARING):
            for name, read in processed.extra.items():
                part = self._extensions_keys[name].around(part, read)
                if not isinstance(part, RequestPart):
                    raise ContractError(f"the prompt key {name!r}: around must return a RequestPart, got {part!r:.100}")
        return part

    def _check_priority(self, priority: Any) -> None:
        """Refuse a priority that is no integer, or would have no effect.

        Raises:
            PromptError: it is no integer.
            InvalidParameterError: requests are not scheduled by priority.
        """
        if not isinstance(priority, int):
            raise PromptError(f"priority must be an integer, got {priority!r:.100}")
        if priority and self._scheduling_policy != "priority":
            raise InvalidParameterError(
                f"priority {shown(priority)} has no effect under "
                f"scheduling_policy={self._scheduling_policy!r}; leave it out, or start with "
                'LLM(..., scheduling_policy="priority")',
                param="priority",
            )

    def _fields(self, prompt: Any) -> Mapping[str, Any]:
        if isinstance(prompt, str):
            return {"prompt": prompt}
        if not isinstance(prompt, Mapping):
            if is_token_ids(prompt):
                return {"prompt_token_ids": prompt}
            raise PromptError(
                f'a prompt is text, token ids, {{"prompt": text, ...}} or {{"prompt_token_ids": [...], ...}}; '
                f"got {prompt!r:.100}"
            )
        if prompt.keys() <= self.prompt_keys:
            return prompt
        unknown = min(map(str, prompt.keys() - self.prompt_keys))
        raise PromptError(f"unknown prompt key {unknown!r}{way_out(unknown, suggestion(unknown, self.prompt_keys))}")

    def _token_ids(self, fields: Mapping[str, Any]) -> list[int]:
        given = fields.get("prompt_token_ids")
        if given is not None:
            return self.known(plain_token_ids(given))
        text = fields.get("prompt")
        if not isinstance(text, str):
            raise PromptError(f"prompt must be a string, got {text!r:.100}")
        return self.known(self.encode_text(text, fields))

    def encode_text(self, text: str, fields: Mapping[str, Any]) -> list[int]:
        """Return the tokens of a prompt's text, which has these keys.

        Raises:
            PromptError, PromptTooLongError: as of `encode`.
        """
        return self.encode(text, add_special_tokens=True)

    def known(self, token_ids: list[int]) -> list[int]:
        """Return the tokens after checking that the model knows each; a million take milliseconds."""
        if token_ids and not 0 <= min(token_ids) <= max(token_ids) < self.embedding_size:
            for token in token_ids:
                self._check_token(token)
        return token_ids

    def _check_token(self, token: int) -> None:
        """Refuse a token that has no embedding and stands for no item.

        Raises:
            PromptError: the token is unknown.
        """
        profile = self.mm_processor.profile
        placed = token in profile.placeholder_token_ids or token in profile.replaced_token_ids
        if not placed and not 0 <= token < self.embedding_size:
            raise PromptError(
                f"the prompt has token {shown(token)}, which this model does not know; "
                f"token ids go from 0 to {self.embedding_size - 1}"
            )

    # --- conversations and transcriptions ---------------------------------------------------------------------------

    def transcription_prompt(self, language: str | None, *, translate: bool, context: str) -> list[int] | None:
        """Return the tokens that ask for what is said in one audio item; None if that is asked in a conversation.

        Args:
            language: that is spoken, or None.
            translate: whether the answer is to be in English.
            context: what was said before; may be empty.

        Raises:
            RequestError: the model cannot be told one of them.
            ContractError, ProcessingError: the adapter is at fault.
        """
        ask = self._hooks.get_transcription_prompt
        with adapter_errors("get_transcription_prompt"):
            tokens = call_hook(ask, language=language, translate=translate, context=context)
        return None if tokens is None else self.known(list(tokens))

    @cached_property
    def speech_form(self) -> SpeechForm | None:
        """How audio is written down that is longer than the model reads at once; None if it reads any.

        Raises:
            ContractError, ProcessingError: the adapter is at fault.
        """
        with adapter_errors("get_speech_form"):
            return call_hook(self._hooks.get_speech_form)

    def process_chat(
        self,
        messages: Any,
        *,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
        cache_salt: str | None = None,
        priority: int = 0,
        prompt_keys: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> ProcessedPrompt:
        """Prepare an OpenAI-style conversation. Special tokens that users typed stay text.

        Args:
            messages: a list of `{"role", "content"}`.
            mm_processor_kwargs, cache_salt, priority: as in a prompt.
            prompt_keys: keys of prompts that extensions read, with their values.
            **options: the fields of `ChatOptions`: `chat_template`, `add_generation_prompt`,
                `continue_final_message`, `tools`, `chat_template_kwargs`, `allowed_special`, `max_window_size`.

        Raises:
            PromptError: malformed messages, no way to place their media, or a model that reads texts alone.
            InvalidParameterError: an option is wrong.
            MultiModalError: an item is wrong, or cannot be fetched.
        """
        chosen, extra = ChatOptions.of(options), {} if prompt_keys is None else self._checked_keys(prompt_keys)
        with adapter_errors(_PREPARING):
            normalized = self._chat.normalized(messages, chosen)
        if is_begun(normalized):
            chosen = replace(chosen, continue_final_message=True)
        if chosen.continue_final_message and self._attended is not None:
            self._attended.check_continuing()
        self._check_length(normalized if chosen.max_window_size is None else normalized[-1:])
        if self._remote_media is not None:
            if chosen.max_window_size is None:  # else the oldest turns may be left out
                counts = {modality: len(media) for modality, media in collect_media(normalized).items()}
                check_counts(counts, self.mm_processor.limits, self.mm_processor.config)
            self._remote_media.load(normalized)
        own = {"mm_processor_kwargs": mm_processor_kwargs, "cache_salt": cache_salt, "priority": priority}
        fields = {**extra, **own}
        if chosen.max_window_size is None:
            return self._process_rendered(normalized, self._rendered(normalized, chosen), fields)
        for chat in self._shortenings(normalized, chosen.max_window_size, chosen, fields):
            processed = self._process_rendered(normalized, chat, fields)
            if len(processed.token_ids) <= chosen.max_window_size:
                return processed
        raise refusal(chosen.max_window_size, len(processed.token_ids))

    def _checked_keys(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the keys that extensions read, after checking that each is read.

        Raises:
            InvalidParameterError: no dictionary, or a key that none reads.
        """
        if not isinstance(given, Mapping):
            raise InvalidParameterError(f"prompt_keys must be a dict, got {given!r:.100}", param="prompt_keys")
        for name in given:
            if name not in self._extensions_keys:
                known = f" (those that are read: {', '.join(sorted(self._extensions_keys)) or 'none'})"
                told, field = f"no installed extension reads {name!r:.100} for this model", "prompt_keys"
                if name in DISTRIBUTIONS:  # the argument of a call, which is passed on so
                    told, field = "no installed extension reads it for this model", name
                raise InvalidParameterError(f"{field}: {told}{way_out(name, known)}", param=field)
        return given

    def _check_length(self, messages: Messages) -> None:
        """Refuse a conversation that can never fit before a template renders it.

        Raises:
            PromptTooLongError: with both numbers.
        """
        text = "".join(part["text"] for message in messages for part in message["content"] if part["type"] == "text")
        self.text_limit.check(text)
        if len(text) > MAX_CHARS:
            raise PromptTooLongError(
                f"the conversation has {len(text)} characters, {MAX_CHARS} are allowed; shorten it"
            )

    def _rendered(self, messages: Messages, options: ChatOptions) -> RenderedChat:
        with adapter_errors(_PREPARING):
            return self._chat.render(messages, options, self.chat_template)

    def _process_rendered(self, messages: Messages, chat: RenderedChat, fields: Mapping[str, Any]) -> ProcessedPrompt:
        """Prepare a prompt of some of a conversation's messages."""
        given = {"prompt_token_ids": chat.token_ids, "multi_modal_data": chat.mm_data, "multi_modal_uuids": chat.uuids}
        with numbered_in(messages, chat):
            processed = self.process({**given, **fields})
        processed.text = chat.text
        if chat.is_open:
            end = len(processed.token_ids) - num_appended(self._unexpanded(chat), chat.token_ids)
            if all(feature.placeholder.end <= end for feature in processed.features):  # none is put behind the prompt
                del processed.token_ids[end:]
        return processed

    def _unexpanded(self, chat: RenderedChat) -> list[int]:
        counts = {modality: len(items) for modality, items in chat.mm_data.items()}
        return self.mm_processor.unexpanded(chat.token_ids, counts)

    def _shortenings(
        self, messages: Messages, max_tokens: int, options: ChatOptions, fields: Mapping[str, Any]
    ) -> Iterator[RenderedChat]:
        """Prompts of the newest turns, by this model's counts, and a request's processor arguments and salt."""

        def expansion(part: Mapping[str, Any], number: int) -> int:
            modality = part["type"]
            given, uuids = {modality: [part[modality]]}, {modality: [part.get("uuid")]}
            try:
                with adapter_errors(_PREPARING):
                    return self.mm_processor.expansion(
                        given, fields["mm_processor_kwargs"], uuids, fields["cache_salt"]
                    )
            except MultiModalError as error:
                renumber(error, number)
                raise

        return shortenings(
            messages,
            max_tokens,
            partial(self._rendered, options=options),
            lambda chat: len(self._unexpanded(chat)),
            expansion,
            self.mm_processor.profile.max_tokens,
        )

    def tokenize(self, text: str) -> list[int]:
        """Text to token ids, nothing added.

        Raises:
            PromptError, PromptTooLongError: as of `encode`.
        """
        return self.encode(text, add_special_tokens=False)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Return the tokens of a text.

        Raises:
            PromptTooLongError: it can never fit.
            PromptError: it is not valid Unicode.
        """
        self.text_limit.check(text)
        if not is_unicode(text):
            raise PromptError("the prompt is not valid Unicode text; decode it with the encoding it was written in")
        return self.text_tokenizer(text, add_special_tokens=add_special_tokens)

    @property
    def end_tokens(self) -> list[int]:
        """The special tokens that the tokenizer puts after every text."""
        return self._added_tokens[1]

    @cached_property
    def _added_tokens(self) -> tuple[list[int], list[int]]:
        """The special tokens that the tokenizer puts before and after every text."""
        bare, full = self.tokenize("a"), self.encode("a", add_special_tokens=True)
        for start in range(len(full) - len(bare) + 1):
            if full[start : start + len(bare)] == bare:
                return full[:start], full[start + len(bare) :]
        return [], []

    # --- parameters against the model -------------------------------------------------------------------------------

    def check_params(self, params: SamplingParams) -> None:
        """Check what depends on the model in sampling parameters: token ids against the logits' width, the constraint.

        Raises:
            InvalidParameterError: names the parameter and the value.
            RequestFailedError: the constraint's extension failed.
        """
        for name in ("logit_bias", "allowed_token_ids", "stop_token_ids", "logprob_token_ids"):
            for token in getattr(params, name) or ():
                if token >= self.vocab_size:
                    raise InvalidParameterError(
                        f"{name}: {shown(token)} is no token id of this model; they are below {self.vocab_size}",
                        param=name,
                    )
        if self._attended is not None:
            self._attended.check_params(params)
        if params.constraint is not None:
            self._extensions.check(params.constraint)
        if params.logits_processors is not None:
            self._extensions.check_processors(params)

    def bad_words_ids(self, params: SamplingParams) -> list[list[int]]:
        """The distinct token sequences of `bad_words`."""
        found = (ids for word in params.bad_words or () for ids in self._word_sequences(word))
        return [list(ids) for ids in dict.fromkeys(found)]

    @cached_property
    def _word_sequences(self) -> Callable[[str], list[tuple[int, ...]]]:
        """`word_sequences` of a word, those of the last thousand kept."""
        decode = partial(self.tokenizer.decode, clean_up_tokenization_spaces=False)
        return lru_cache(maxsize=1024)(partial(word_sequences, tokenize=self.tokenize, decode=decode))


def with_request_id(error: Exception, request_id: str) -> Exception:
    """Return the error; a multimodal one gets the request's id."""
    if isinstance(error, MultiModalError) and error.request_id is None:
        error.request_id = request_id
    return error
