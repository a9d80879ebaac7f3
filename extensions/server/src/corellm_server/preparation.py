"""Makes prompts that the engine takes of requests: checked, loaded, tokenized, processed, and with room to generate.

Runs in bounded pools of threads, beside the event loop. Whatever is wrong with a request is found here, before the
engine or a response begins.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, TypeVar

from corellm.errors import MultiModalError, PromptTooLongError, RequestError
from corellm.multimodal.chat.reading import Part, ReadMessages
from corellm.sampling_params import SamplingParams
from corellm.serving import CHEAP_CHARACTERS, EngineClient, PreparationPools, ProcessedPrompt
from corellm_server.adapters import ServedAdapters
from corellm_server.conversation import CheckedMessages, check_counts, check_messages
from corellm_server.errors import ApiError
from corellm_server.exchange import Exchange
from corellm_server.media_sources import Fetcher, MediaSources
from corellm_server.options import ServerConfig
from corellm_server.requests.audio import TranscriptionRequest
from corellm_server.requests.chat import TemplateFields
from corellm_server.requests.completions import Prompt
from corellm_server.requests.forms import form_errors, form_field
from corellm_server.requests.sampling import ChoiceFields
from corellm_server.stages import stage
from corellm_server.tools.held import arguments_alone

if TYPE_CHECKING:
    from corellm_pooling.params import PoolingParams

_Result = TypeVar("_Result")
_NUM_PASSED = 1024
"""Fewer than those who check forms remember."""


class Preparation:
    """Prepares requests for one engine.

    Args:
        client: the engine.
        config: what requests may hold and name.
        fetcher: fetches URLs; None for no URLs.
        adapters: LoRA adapters that requests name as models; None for none.
    """

    def __init__(
        self,
        client: EngineClient,
        config: ServerConfig,
        fetcher: Fetcher | None,
        adapters: ServedAdapters | None = None,
    ) -> None:
        self._client, self._config, self._adapters = client, config, adapters
        self._sources = MediaSources(
            config.options.allowed_local_media_path, fetcher, takes_embeddings=config.options.enable_mm_embeds
        )
        self._pools = PreparationPools()
        self._checks = PreparationPools()
        """Threads of their own: a check of a form may wait for others."""
        self._passed: OrderedDict[bytes, None] = OrderedDict()
        """Hashes of the forms that passed last: to check one again takes no time."""

    async def conversation(
        self,
        exchange: Exchange,
        request: TemplateFields,
        *,
        priority: int | None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> ProcessedPrompt:
        """The prompt of a conversation.

        Args:
            exchange: the request.
            request: its body.
            priority: lower runs first.
            tools: for the template.

        Raises:
            ApiError, CorellmError: what is wrong; names the part at fault.
        """
        options = self._chat_options(request) | ({"tools": tools} if tools else {})
        item_limits = self._client.input_processor.mm_processor.limits
        checked = await exchange.aside(
            lambda: check_messages(
                request.turns,
                self._config.limits,
                item_limits,
                field=request.FIELD,
                numbers=request.numbers,
                joins_turns=request.JOINS_TURNS,
            )
        )
        owner = (exchange.salt or "") if request.is_kept else None
        await self.load(checked.sources, owner, earlier=f"{request.FIELD}[-")
        return await self._checked(
            exchange, checked, mm_processor_kwargs=request.mm_processor_kwargs, priority=priority or 0, **options
        )

    async def audio(self, exchange: Exchange, request: TranscriptionRequest, item: Any = None) -> ProcessedPrompt:
        """The prompt that asks for what is said in a file: of the family's own form, else of a conversation.

        Args:
            exchange: the request.
            request: its body.
            item: a piece of the file; None for the whole.

        Raises:
            ApiError, CorellmError: what is wrong with it, or the model takes no audio, or cannot be told what it is.
        """
        processor, content = self._client.input_processor, request.file.content if item is None else item
        parts = [Part("file", "audio", content)]
        checked = CheckedMessages(ReadMessages([{"role": "user", "content": parts}]), "file")
        check_counts(checked.sources, 1, processor.mm_processor.limits)
        if request.fits_a_form:
            ask = partial(
                processor.transcription_prompt,
                request.language_alone,
                translate=request.TRANSLATES,
                context=request.prompt or "",
            )
            if (tokens := await self.in_pool(exchange, ask, takes_long=True)) is not None:
                given = {
                    "prompt_token_ids": tokens,
                    "multi_modal_data": {"audio": content},
                    "cache_salt": exchange.salt,
                    **self._keys_of(exchange),
                }
                process = partial(processor.process, given)
                return await self.in_pool(exchange, lambda: _located(checked, process), takes_long=True)
        if processor.prompt_room is None:
            parts.append(Part("instruction", "text", request.instruction))
        else:
            request.check_tells_nothing()
        return await self._checked(exchange, checked)

    async def load(self, parts: Sequence[Part], owner: str | None = None, *, earlier: str = "") -> None:
        """Load the media that parts name; arguments as of `MediaSources.load`.

        Raises:
            ApiError: names the part at fault.
        """
        with stage("fetch"):
            await self._sources.load(parts, owner, earlier)

    async def rendered(
        self, exchange: Exchange, checked: CheckedMessages, template: str, *, priority: int | None
    ) -> ProcessedPrompt:
        """The prompt of messages whose media are loaded, by a template of the server's own.

        Raises:
            ApiError, CorellmError: what is wrong; names the part at fault.
        """
        return await self._checked(
            exchange, checked, chat_template=template, add_generation_prompt=False, priority=priority or 0
        )

    async def _checked(self, exchange: Exchange, checked: CheckedMessages, **options: Any) -> ProcessedPrompt:
        options["cache_salt"] = exchange.salt
        if keys := self._keys_of(exchange):
            options["prompt_keys"] = keys
        process = partial(self._client.input_processor.process_chat, checked.messages, **options)
        takes_long = bool(checked.sources) or checked.num_characters > CHEAP_CHARACTERS
        takes_long = takes_long or exchange.is_large or "chat_template" in options
        return await self.in_pool(exchange, lambda: _located(checked, process), takes_long=takes_long)

    async def prompt(
        self, exchange: Exchange, prompt: Prompt | Mapping[str, Any], where: str, *, priority: int | None
    ) -> ProcessedPrompt:
        """A prompt of text or token ids.

        Args:
            exchange: the request.
            prompt: the client's, or made of what it sent: then with the keys that the engine takes.
            where: its place in the request.
            priority: lower runs first.

        Raises:
            ApiError, CorellmError: what is wrong.
        """
        if not isinstance(prompt, Mapping):
            prompt = {"prompt" if isinstance(prompt, str) else "prompt_token_ids": prompt}
        length = sum(len(prompt.get(key) or ()) for key in ("prompt", "text_pair", "prompt_token_ids"))
        keys = self._keys_of(exchange)
        fields = {**prompt, "cache_salt": exchange.salt, "priority": priority or 0, **keys}
        process = partial(self._client.input_processor.process, fields)
        takes_long = length > CHEAP_CHARACTERS or "multi_modal_data" in prompt
        try:
            return await self.in_pool(exchange, process, takes_long=takes_long)
        except RequestError as error:
            raise ApiError(error.status, f"{where}: {error}", param=error.param or where) from error

    def _keys_of(self, exchange: Exchange) -> Mapping[str, Any]:
        return {} if self._adapters is None else self._adapters.keys_of(exchange.body)

    async def check_form(self, exchange: Exchange, request: ChoiceFields, params: SamplingParams) -> None:
        """Check the form that a client asks an output to have.

        Raises:
            ApiError, CorellmError: outputs cannot be held to it; names the client's field.
        """
        await self._check_form(exchange, form_field(request), params)

    async def check_calls(
        self,
        exchange: Exchange,
        request: ChoiceFields,
        asked: SamplingParams,
        held: SamplingParams,
        places: Mapping[str, Mapping[str, Any]],
    ) -> None:
        """Check the form of calls. If outputs cannot be held to it, its parts are checked, to tell which is at fault.

        Args:
            exchange: the request.
            request: its body.
            asked: as the client has it, maybe with a form of its own, which is a part.
            held: with the form of calls.
            places: the schemas of what is called, by where they are in the request.

        Raises:
            ApiError, CorellmError: outputs cannot be held to it; names the client's field.
        """
        try:
            await self._check_form(exchange, "tools", held)
        except ApiError:
            await self.check_form(exchange, request, asked)
            for place, schema in places.items():
                form = await exchange.aside(partial(arguments_alone, schema))
                await self._check_form(exchange, place, SamplingParams(structured_outputs=form))
            raise

    async def _check_form(self, exchange: Exchange, field: str, params: SamplingParams) -> None:
        """Check a form, which may take seconds; from then on it is known.

        Args:
            exchange: the request.
            field: that it comes from.
            params: with the form.

        Raises:
            ApiError, CorellmError: outputs cannot be held to it; names the field.
        """
        if params.constraint is None:
            return
        exchange.form_field = field
        with form_errors(field):
            check = partial(self._client.input_processor.check_params, params)
            key = blake2b(params.constraint.definition.encode(errors="surrogatepass"), digest_size=16).digest()
            if key in self._passed:
                await self.in_pool(exchange, check, takes_long=False)
            else:
                await self.in_pool(exchange, check, takes_long=True, pools=self._checks)
        self._passed[key] = None
        self._passed.move_to_end(key)
        if len(self._passed) > _NUM_PASSED:
            self._passed.popitem(last=False)

    def check_fit(self, prompt: ProcessedPrompt, params: SamplingParams, *, is_capped: bool, where: str) -> None:
        """Check a request against the model: token ids of its parameters, and the length of prompt and output.

        Args:
            prompt: prepared.
            params: of the request.
            is_capped: whether the client asked for `max_tokens`, which then must fit.
            where: the prompt's place in the request.

        Raises:
            ApiError: prompt and output, or the shortest output, are too long, with both numbers.
            InvalidParameterError: a token id that the model does not have.
        """
        self._client.input_processor.check_params(params)
        of_decoder = prompt.token_ids if prompt.decoder is None else prompt.decoder.token_ids
        length, limit = len(of_decoder), self._client.max_model_len
        wanted = (params.max_tokens if is_capped else None) or 1
        if length + wanted > limit:
            raise ApiError(
                400,
                f"{where}: the prompt has {length} tokens, and with {wanted} to generate that is more than the {limit} "
                "that this model takes; shorten the prompt, or generate fewer",
                param=where,
                code="context_length_exceeded",
            )
        if length + params.min_tokens > limit:
            raise ApiError(
                400,
                f"min_tokens: the prompt has {length} tokens, with {params.min_tokens} that is more than the {limit} "
                "that this model takes; ask for fewer",
                param="min_tokens",
                code="context_length_exceeded",
            )

    def fitted(self, prompt: ProcessedPrompt, params: PoolingParams, where: str) -> ProcessedPrompt:
        """A prompt that is pooled, cut to the tokens that are kept, and without its text, which is not needed again.

        Raises:
            ApiError: it is too long, with both numbers.
            InvalidParameterError: an item would be cut.
        """
        from corellm_pooling.inputs import PooledPrompt
        from corellm_pooling.truncation import truncated_right

        assert isinstance(prompt, PooledPrompt)
        limit = prompt.limit(self._client.max_model_len)
        end_tokens = self._client.input_processor.end_tokens
        prompt = truncated_right(prompt, params.truncate_prompt_tokens, limit, end_tokens)
        length = len(prompt.token_ids)
        if length > limit:
            raise ApiError(
                400,
                f"{where}: the prompt has {length} tokens, more than the {limit} that this model takes; shorten it, or "
                "set truncate_prompt_tokens to -1",
                param=where,
                code="context_length_exceeded",
            )
        return replace(prompt, text=None)

    async def in_pool(
        self,
        exchange: Exchange,
        function: Callable[[], _Result],
        *,
        takes_long: bool,
        pools: PreparationPools | None = None,
    ) -> _Result:
        """Call a function in a thread, in the client's turn; cancelled before it began, it is not called."""
        with stage("process"):
            future = (pools or self._pools).submit(
                function, takes_long=takes_long, owner=exchange.salt or exchange.client
            )
            return await asyncio.wrap_future(future)

    def close(self) -> None:
        """End the threads."""
        self._pools.close()
        self._checks.close()

    def _chat_options(self, request: TemplateFields) -> dict[str, Any]:
        """The options of a conversation that the client gave and may give."""
        options = self._config.options
        if request.chat_template is not None and not options.allow_request_templates:
            raise ApiError(
                400, "chat_template: this server takes no templates of requests; leave it out", param="chat_template"
            )
        _allowed("chat_template_kwargs", request.chat_template_kwargs, options.allowed_template_kwargs)
        _allowed("mm_processor_kwargs", request.mm_processor_kwargs, options.allowed_mm_processor_kwargs)
        given = {
            "chat_template": request.chat_template,
            "chat_template_kwargs": self._variables(request) or None,
            "add_generation_prompt": request.add_generation_prompt,
            "continue_final_message": request.continue_final_message,
            "max_window_size": self._window(request),
        }
        return {name: value for name, value in given.items() if value is not None}

    def _variables(self, request: TemplateFields) -> dict[str, Any]:
        """Variables of the template: the client's, and whether and how long to think if the template takes that."""
        template = request.chat_template or self._client.input_processor.chat_template or ""
        of_effort = {"reasoning_effort": request.effort, "enable_thinking": request.thinks}
        taken = {name: value for name, value in of_effort.items() if value is not None and name in template}
        return taken | (request.chat_template_kwargs or {})

    def _window(self, request: TemplateFields) -> int | None:
        """Most tokens of a conversation's prompt; None for as many as the model takes."""
        window = request.max_window_size
        window = self._config.options.max_window_size if window is None else window
        if request.num_reserved is None:
            return window
        room = self._client.input_processor.prompt_room  # of an encoder-decoder, whose output has room of its own
        room = max(1, self._client.max_model_len - request.num_reserved) if room is None else room
        return room if window is None else min(window, room)


def _located(checked: CheckedMessages, process: Callable[[], ProcessedPrompt]) -> ProcessedPrompt:
    """Prepare a conversation; the error for an item names its part."""
    try:
        return process()
    except MultiModalError as error:
        raise checked.located(error) from error
    except PromptTooLongError as error:
        raise ApiError(400, f"{checked.field}: {error}", param=checked.field, code="context_length_exceeded") from error


def _allowed(name: str, given: Mapping[str, Any] | None, allowed: Collection[str]) -> None:
    for key in given or ():
        if key not in allowed:
            known = ", ".join(allowed) or "none"
            raise ApiError(400, f"{name}: {key!r:.100} is not allowed by this server; allowed: {known}", param=name)
