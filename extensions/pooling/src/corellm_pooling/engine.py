"""The engine of a model that pools: requests have `PoolingParams`, and end with their prompt's last chunk.

Everything else is `LLMEngine`: the same scheduler, prompts, items and steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from corellm.config import EngineConfig
from corellm.engine.llm_engine import LLMEngine
from corellm.frontend.input_processor import ProcessedPrompt
from corellm.frontend.output_processor import OutputProcessor
from corellm.loading.locating import LocatedModel
from corellm.sampling_params import SamplingParams
from corellm.scheduling.request import Request
from corellm_pooling.outputs import PooledOutputs

if TYPE_CHECKING:  # imports torch
    from corellm_pooling.runner import PoolingRunner

_NO_SAMPLING = SamplingParams(max_tokens=1, detokenize=False)
"""Sampling parameters of pooled requests: no token is sampled."""


class PoolingEngine(LLMEngine):
    """Serves one model that pools; arguments as of `LLMEngine`."""

    def __init__(
        self, config: EngineConfig, *, check_encoders: bool = True, located: LocatedModel | None = None
    ) -> None:
        super().__init__(config, check_encoders=check_encoders, located=located)
        runner = cast("PoolingRunner", self.runner)
        self.pooler, self.reads_pairs = runner.pooler, runner.reads_pairs
        self.output_processor = cast(OutputProcessor, PooledOutputs())  # it has the methods that the engine calls
        self.prepares_at_once = not self.input_processor.mm_processor.limits

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that requests may have."""
        return self.pooler.tasks

    def own_params(self, given: Any) -> Any:
        """A request's parameters, checked.

        Raises:
            InvalidParameterError: no `PoolingParams`, or of a task that the model was not loaded for.
        """
        params = super().own_params(given)
        self.pooler.check(params)
        return params

    def requests_of(self, prompt: ProcessedPrompt, params: Any, arrival_time: float) -> list[Request]:
        """Return the request of a prompt, which ends with it.

        Raises:
            InvalidParameterError: the pooler cannot do what the parameters ask for.
        """
        self.pooler.check(params)
        return [
            Request(
                request_id=str(next(self._ids)),
                prompt_token_ids=prompt.token_ids,
                sampling_params=_NO_SAMPLING,
                features=prompt.features,
                priority=prompt.priority,
                cache_salt=prompt.cache_salt,
                arrival_time=arrival_time,
                prompt_task=params,
                part=self.input_processor.part_of(prompt),
                needs_every_row=self.pooler.needs_every_row(params, prompt.token_ids),
            )
        ]
