"""What all endpoints share: the engine, the model's names, preparation, metrics. Knows no HTTP but its errors."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corellm.errors import AbsentMethodError
from corellm.outputs import RequestOutput
from corellm.sampling_params import SamplingParams
from corellm.serving import EngineClient, ProcessedPrompt
from corellm_server.adapters import ServedAdapters
from corellm_server.errors import ApiError, no_model, unavailable
from corellm_server.exchange import Exchange
from corellm_server.intake import Intake, Stoppable
from corellm_server.kept.background import BackgroundRun
from corellm_server.kept.responses import KeptResponses
from corellm_server.media_sources import Fetcher
from corellm_server.metrics import ServerMetrics
from corellm_server.options import ServerConfig, ServerOptions
from corellm_server.output_forms import OutputForm, OutputForms
from corellm_server.preparation import Preparation
from corellm_server.requests.chat import ChatRequest
from corellm_server.requests.forms import form_errors, schema_of
from corellm_server.requests.messages import MessagesRequest
from corellm_server.requests.responses import ResponsesRequest
from corellm_server.requests.tools import demand_of, given_tools, parameter_places, strict_place
from corellm_server.uploads import Uploads
from corellm_server.uses import check_tasks

if TYPE_CHECKING:  # needs corellm[otel], corellm-pooling
    from corellm_pooling.params import PoolingParams
    from corellm_pooling.results import PoolingOutput, PoolingRequestOutput
    from corellm_server.tracing import Tracing


def served_names(options: ServerOptions, model: str) -> Sequence[str]:
    """The names by which clients ask for a model; of a directory its last part, as paths are not theirs to know."""
    own = Path(model).resolve().name if Path(model).is_dir() else model
    return tuple(options.served_model_name) or (own,)


class Service:
    """One served model.

    Args:
        client: its engine.
        model: the name it was loaded by.
        config: of the server.
        fetcher: fetches URLs of media, and is closed with the service; None for no URLs.
        tracing: makes spans of requests, and is closed with the service; None for no spans.
        first: the server's first model, if this is another one: they share what counts requests, the responses that
            are kept, fetcher and tracing, which are closed with the first one.
        max_queue: most requests of this model at once, of several; None for as many as the server takes.
    """

    def __init__(
        self,
        client: EngineClient,
        model: str,
        config: ServerConfig,
        fetcher: Fetcher | None = None,
        tracing: Tracing | None = None,
        *,
        first: Service | None = None,
        max_queue: int | None = None,
    ) -> None:
        self.client, self.config = client, config
        self.names = served_names(config.options, model)
        self.loaded_as = model
        """What clients may ask for, too."""
        self._max_queue = max_queue
        self.in_flight: set[Stoppable] = set()
        """Requests of this model, of several; of an only one the intake's are."""
        self.created = int(time.time())
        options = config.options
        self._is_first = first is None
        if first is None:
            uploads = Uploads(options.max_uploads, options.max_uploads_per_client)
            self.intake = Intake(options.max_queue, config.limits.max_held_bytes, uploads)
            self.metrics = ServerMetrics()
            self.kept = KeptResponses(
                options, config.limits.max_body_bytes, self.intake, self.hold, self.metrics.kept_responses
            )
        else:
            self.intake, self.metrics, self.kept = first.intake, first.metrics, first.kept
        taken = (*self.names, model)
        self.adapters = ServedAdapters(
            options.lora_modules, taken, client.input_processor, options.allow_runtime_lora_updating
        )
        """LoRA adapters by the names that clients ask for."""
        self.preparation = Preparation(client, config, fetcher, self.adapters)
        self.forms = OutputForms(client.input_processor, options)
        self._fetcher = fetcher
        self.tracing = tracing

    def enter(self, request: Stoppable) -> None:
        """Let a request of this model in.

        Raises:
            ApiError: 503, it has as many as it may have.
        """
        if self._max_queue is not None and len(self.in_flight) >= self._max_queue:
            raise unavailable(f"{self.names[0]} is full: {self._max_queue} requests are in it; try again later")
        self.in_flight.add(request)

    def hand_over(self, exchange: Exchange, run: BackgroundRun) -> None:
        """Let a response that is made in the background have the place of its request."""
        if exchange in self.in_flight:
            self.in_flight.discard(exchange)
            self.in_flight.add(run)
            run.when_ended(partial(self.in_flight.discard, run))

    def check_model(self, name: str | None, *tasks: str) -> str:
        """The model's name, or an adapter's, as the client gave it; None for any. The name that the model was loaded by
        is taken, too.

        Args:
            name: of the request.
            tasks: of which the model must have one; none where it does not matter.

        Raises:
            ApiError: 404, another model; 400, it has none of the tasks.
        """
        if name is not None and name not in (*self.names, self.loaded_as, *self.adapters):
            raise no_model(name, (*self.names, *self.adapters))
        if tasks:
            check_tasks(self.client.tasks, tasks)
        return self.names[0] if name is None else name

    def hold(self, exchange: Exchange, num_bytes: int) -> None:
        """Count memory that is held for a request until its response is complete.

        Raises:
            ApiError: 503, the requests in the server hold too much together.
        """
        self.intake.hold(num_bytes)
        exchange.num_bytes += num_bytes

    async def prepare(
        self,
        exchange: Exchange,
        body: ChatRequest | MessagesRequest | ResponsesRequest,
        params: SamplingParams,
        tools: Sequence[Any] | None,
        choice: object,
        one_call: bool,
        *,
        is_capped: bool,
    ) -> tuple[ProcessedPrompt, SamplingParams, OutputForm]:
        """The prompt of a conversation, its sampling parameters, and how its outputs are read.

        Args:
            exchange: the request.
            body: of the request.
            params: as the client asked.
            tools: of the request, as functions.
            choice: `tool_choice`, as OpenAI has it.
            one_call: whether the client takes one call at most.
            is_capped: whether the client said how long the output may be.

        Raises:
            ApiError, CorellmError: what is wrong; names the client's field.
        """
        given = given_tools(tools, choice, self.config.limits.max_tools)
        demand, schema = demand_of(given, choice, one_call), schema_of(body)
        strict = None if params.constraint is not None else strict_place(tools)  # the client's form is for all of it
        form = await exchange.aside(
            lambda: self.forms.of(given, body.chat_template, demand=demand, strict=strict, schema=schema)
        )
        if form.held is None:
            await self.preparation.check_form(exchange, body, params)
        else:
            asked, params = params, await exchange.aside(lambda: form.holding(params))
            places = parameter_places(tools, demand.tools or given, body.PARAMETERS)
            await self.preparation.check_calls(exchange, body, asked, params, places)
        prompt = await self.preparation.conversation(exchange, body, priority=body.priority, tools=given)
        begun, thinks, budget = body.is_begun, body.thinks, body.thinking_budget
        if isinstance(body, MessagesRequest) and not self.forms.can_bound_reasoning:
            budget = None  # Anthropic's clients must state one, and there it is an aim
        form = form.after(prompt.text, params, is_begun=begun, thinks=thinks, budget=budget)
        params = form.params(params)
        with form_errors(exchange.form_field):
            self.preparation.check_fit(prompt, params, is_capped=is_capped, where=body.FIELD)
        return prompt, params, form

    async def generate(
        self, exchange: Exchange, prompt: ProcessedPrompt, params: SamplingParams
    ) -> AsyncGenerator[RequestOutput, None]:
        """Complete a prompt; the request is aborted when the iteration is closed."""
        self.metrics.prepared(exchange, len(prompt.token_ids))
        num_tokens, output = 0, None
        try:
            with form_errors(exchange.form_field):
                async with contextlib.aclosing(self.client.generate(prompt, params)) as outputs:
                    async for output in outputs:
                        num_tokens += sum(len(completion.token_ids) for completion in output.outputs)
                        if output.finished:  # outputs are deltas, or there is only a final one
                            self.metrics.finished(exchange, output, num_tokens)
                        yield output
        finally:
            exchange.num_output_tokens += num_tokens
            if output is not None:
                exchange.outputs.append(output)

    async def complete(self, exchange: Exchange, prompt: ProcessedPrompt, params: SamplingParams) -> RequestOutput:
        """The final output of a prompt."""
        async with contextlib.aclosing(self.generate(exchange, prompt, params)) as outputs:
            return [output async for output in outputs][-1]

    async def search(self, exchange: Exchange, prompt: ProcessedPrompt, beams: dict[str, Any], n: int) -> RequestOutput:
        """The `n` best outputs of a search with beams; it is aborted when this is cancelled.

        Raises:
            ApiError: what searches is not installed.
        """
        try:
            beam_search = self.client.beam_search
        except AbsentMethodError as error:
            raise ApiError(400, f"use_beam_search is not supported here: {error}", param="use_beam_search") from None
        self.metrics.prepared(exchange, len(prompt.token_ids))
        output = await beam_search(prompt, beams)
        output = replace(output, outputs=output.outputs[:n])
        num_tokens = sum(len(completion.token_ids) for completion in output.outputs)
        self.metrics.finished(exchange, output, num_tokens)
        exchange.num_output_tokens += num_tokens
        exchange.outputs.append(output)
        return output

    async def pool(
        self, exchange: Exchange, prompt: ProcessedPrompt, params: PoolingParams
    ) -> PoolingRequestOutput[PoolingOutput]:
        """The result of a prompt; the request is aborted when this is cancelled."""
        self.metrics.prepared(exchange, len(prompt.token_ids))
        async with contextlib.aclosing(self.client.encode(prompt, params)) as outputs:
            (output,) = [output async for output in outputs]
        exchange.outputs.append(output)
        return output

    async def close(self) -> None:
        """End background work and the threads of preparation, fetching and tracing. The engine is not its own."""
        self.preparation.close()
        if not self._is_first:
            return
        if self.tracing is not None:
            self.tracing.close()
        if self._fetcher is not None:
            await self._fetcher.close()
        await self.kept.close()
