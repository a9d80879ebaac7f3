"""Runs beam searches: `LLM.beam_search` and `AsyncLLM.beam_search`.

Each step of a search is a request of one token for each of its beams, whose prompt is the search's with the beam's
tokens behind it: the prefix cache has all but the last of them. Knows requests and outputs, and nothing of scheduling.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from corellm.errors import CorellmError, InvalidParameterError
from corellm.frontend.detokenizer import IncrementalDetokenizer
from corellm.known_fields import refusing
from corellm.llm import LLM
from corellm.outputs import CompletionOutput, PositionLogprobs, RequestMetrics, RequestOutput, refused_output
from corellm.prompts import is_conversation, keys_of_each, split_prompts
from corellm.sampling_params import MAX_LOGPROBS, SamplingParams
from corellm.serving import ProcessedPrompt
from corellm_decoding.beam_params import BeamSearchParams
from corellm_decoding.beams import Beam, Beams, at_temperature

if TYPE_CHECKING:
    from corellm.llm import OnError
    from corellm.serving import AsyncLLM
    from corellm_lora.lora_request import LoRARequest


@dataclass(slots=True)
class BeamOutput(CompletionOutput):
    """One of the most likely outputs of a prompt."""

    score: float = 0.0
    """`cumulative_logprob`, divided by the number of tokens to the power of `length_penalty`."""


def calls_of(llm: LLM | AsyncLLM) -> BeamCalls | AsyncBeamCalls:
    """Return the call of an engine."""
    return BeamCalls(llm) if isinstance(llm, LLM) else AsyncBeamCalls(llm)


class BeamCalls:
    """`LLM.beam_search`.

    Args:
        llm: whose it is.
    """

    def __init__(self, llm: LLM) -> None:
        self._llm, self._engine = llm, llm.engine

    @refusing()
    def beam_search(
        self,
        prompts: Any,
        params: BeamSearchParams | dict[str, Any],
        *,
        on_error: OnError = "raise",
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
    ) -> list[RequestOutput]:
        """Search for the most likely outputs of prompts, as transformers' `generate(num_beams=)` does.

        Args:
            prompts: those of `LLM.generate`, or conversations as of `LLM.chat`, one or a list.
            params: how to search, for all prompts: `BeamSearchParams`, or its fields as a dictionary.
            on_error: as of `LLM.generate`.
            lora_request: as of `LLM.generate`.

        Returns:
            One output per prompt, whose `outputs` are `BeamOutput`s, the best one first.

        Raises:
            CorellmError: the first failed prompt's error.
        """
        params = BeamSearchParams.of(params)
        self._engine.use.check_task("generate")
        listed = [prompts] if is_conversation(prompts) else split_prompts(prompts)
        keys_of_all = keys_of_each(lora_request, len(listed))
        searches = [self._begun(prompt, params, keys) for prompt, keys in zip(listed, keys_of_all, strict=True)]
        while any(wanted := [search.prompts for search in searches]):
            prepare = [partial(_itself, prompt) for some in wanted for prompt in some]
            steps = [search.step for search, some in zip(searches, wanted, strict=True) for _ in some]
            found = iter(self._llm.run_prepared(prepare, steps, use_tqdm=False, on_error="return"))
            for search, some in zip(searches, wanted, strict=True):
                search.take(list(islice(found, len(some))))
        return self._llm.run_ended([search.output() for search in searches], on_error)

    def _begun(self, prompt: Any, params: BeamSearchParams, keys: Mapping[str, Any] | None) -> Search:
        """Return the search of a prompt; one that has failed, if the prompt is wrong."""
        processor = self._engine.input_processor
        process: Callable[..., ProcessedPrompt] = (
            processor.process_chat if is_conversation(prompt) else processor.process
        )
        limit = self._engine.scheduler.limits.max_total_tokens
        search = Search(params, self._engine.eos_token_ids, self._engine.context.tokenizer)
        try:
            search.begin(process(prompt, prompt_keys=keys), limit)
        except CorellmError as error:
            search.fail(refused_output("beam-search", error, params.beam_width))
        return search


class AsyncBeamCalls:
    """`AsyncLLM.beam_search`.

    Args:
        llm: whose it is.
    """

    def __init__(self, llm: AsyncLLM) -> None:
        self._llm = llm

    @refusing()
    async def beam_search(
        self, prompt: Any, params: BeamSearchParams | dict[str, Any], *, lora_request: LoRARequest | None = None
    ) -> RequestOutput:
        """Search for the most likely outputs of a prompt, as `LLM.beam_search`; cancelling aborts it.

        Raises:
            RequestError: the request is wrong.
            RequestFailedError: it failed while it ran.
            EngineDeadError: the engine stopped.
        """
        llm = self._llm
        search = Search(BeamSearchParams.of(params), llm.engine.eos_token_ids, llm.engine.context.tokenizer)
        (keys,) = keys_of_each(lora_request, 1)
        if keys or not isinstance(prompt, ProcessedPrompt):
            prompt = await asyncio.to_thread(llm.input_processor.process, prompt, prompt_keys=keys)
        search.begin(prompt, llm.max_model_len)
        while prompts := search.prompts:
            search.take(await asyncio.gather(*(_only(llm.generate(one, search.step)) for one in prompts)))
        return search.output()


class Search:
    """The search of one prompt.

    Args:
        params: how to search.
        eos_token_ids: the model's, which end outputs unless they are to be ignored.
        tokenizer: the model's.

    Attributes:
        step: parameters of the requests that a step consists of.
    """

    def __init__(self, params: BeamSearchParams, eos_token_ids: frozenset[int], tokenizer: Any) -> None:
        self._params, self._tokenizer = params, tokenizer
        self._eos_token_ids = frozenset[int]() if params.ignore_eos else eos_token_ids
        self._prompt: ProcessedPrompt | None = None
        self._first: RequestOutput | None = None
        self._last: RequestOutput | None = None
        self._failed: RequestOutput | None = None

    def begin(self, prompt: ProcessedPrompt, limit: int) -> None:
        """Begin with a prompt.

        Args:
            prompt: of the search.
            limit: most tokens of prompt and output together.

        Raises:
            InvalidParameterError: the model has an encoder for the prompt.
        """
        if prompt.decoder is not None:
            raise InvalidParameterError(
                "beam_search: the prompt of this model is read by an encoder, and the first tokens of its outputs are "
                "given; beams are not followed there. Use generate with n"
            )
        room = max(1, limit - len(prompt.token_ids))
        self._prompt, self._beams = prompt, Beams(self._params, self._eos_token_ids, min(self._params.max_tokens, room))
        self._num_reported = max(self._beams.num_candidates, self._params.logprobs or 0)
        whole = self._beams.num_needed > MAX_LOGPROBS or self._rescales
        if not whole:  # a whole vocabulary of each beam takes seconds
            self._num_reported = min(self._num_reported, MAX_LOGPROBS)
        self.step = SamplingParams(
            temperature=0, max_tokens=1, logprobs=-1 if whole else self._num_reported, ignore_eos=True
        )

    @property
    def _rescales(self) -> bool:
        return self._params.temperature not in (0, 1)

    @property
    def prompts(self) -> list[ProcessedPrompt]:
        """The prompts of the next step, one for each running beam; none if the search is over."""
        if self._prompt is None or self._failed is not None:
            return []
        own = self._prompt
        return [replace(own, token_ids=[*own.token_ids, *beam.token_ids]) for beam in self._beams.running]

    def take(self, outputs: Sequence[RequestOutput]) -> None:
        """Take in the outputs of a step's requests."""
        failed = next((output for output in outputs if output.error is not None), None)
        if failed is not None:
            self.fail(failed)
        elif outputs:
            self._first, self._last = self._first or outputs[0], outputs[0]
            self._beams.take([self._reported(output.outputs[0]) for output in outputs])

    def _reported(self, completion: CompletionOutput) -> PositionLogprobs:
        """Return the most likely next tokens, in order."""
        assert completion.logprobs is not None
        (position,) = completion.logprobs
        if self._rescales:
            position = at_temperature(position, self._params.temperature)
        return dict(islice(position.items(), self._num_reported))

    def fail(self, output: RequestOutput) -> None:
        """End the search with the output of a request that failed."""
        self._failed = output

    def output(self) -> RequestOutput:
        """Return the result of the search."""
        if self._failed is not None:
            return self._failed
        assert self._prompt is not None
        assert self._first is not None
        outputs: list[CompletionOutput] = [
            self._completed(index, score, beam) for index, (score, beam) in enumerate(self._beams.finished)
        ]
        return replace(self._first, outputs=outputs, metrics=self._metrics(sum(len(one.token_ids) for one in outputs)))

    def _metrics(self, num_tokens: int) -> RequestMetrics | None:
        assert self._first is not None
        assert self._last is not None
        first, last = self._first.metrics, self._last.metrics
        if first is None or last is None:
            return None
        return replace(
            first, last_token_ts=last.last_token_ts, finished_time=last.finished_time, num_generation_tokens=num_tokens
        )

    def _completed(self, index: int, score: float, beam: Beam) -> BeamOutput:
        assert self._prompt is not None
        skips = self._params.skip_special_tokens
        detokenizer = IncrementalDetokenizer(self._tokenizer, self._prompt.token_ids, skip_special_tokens=skips)
        shown = beam.token_ids[:-1] if beam.ends and not self._params.include_stop_str_in_output else beam.token_ids
        # the token itself comes first, as in every output
        logprobs = [{token: at[token], **at} for token, at in zip(beam.token_ids, beam.positions, strict=True)]
        return BeamOutput(
            index, detokenizer.extend(shown) + detokenizer.finish(), list(beam.token_ids), beam.logprob, logprobs,
            "stop" if beam.ends else "length", score=score,
        )  # fmt: skip


def _itself(prompt: ProcessedPrompt) -> ProcessedPrompt:
    return prompt


async def _only(outputs: AsyncGenerator[RequestOutput, None]) -> RequestOutput:
    async with aclosing(outputs):
        return [output async for output in outputs][-1]
