"""What the server needs of an engine: `AsyncLLM` in this process, or the client of one in a process of its own."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from corellm.engine.metrics import Metric
from corellm.errors import EngineDeadError
from corellm.frontend.input_processor import InputProcessor, ProcessedPrompt
from corellm.outputs import RequestOutput
from corellm.sampling_params import SamplingParams

if TYPE_CHECKING:  # of an extension, which may not be installed
    from corellm_pooling.params import PoolingParams
    from corellm_pooling.results import PoolingOutput, PoolingRequestOutput


class EngineClient(Protocol):
    """A loaded model that serves many coroutines at once; methods are documented at `AsyncLLM`."""

    # what extensions bring, each an `AbsentMethodError` where none does
    beam_search: Callable[..., Awaitable[RequestOutput]]
    sleep: Callable[..., Awaitable[None]]
    wake_up: Callable[..., Awaitable[None]]
    is_sleeping: Callable[[], Awaitable[bool]]
    update_weights: Callable[..., Awaitable[None]]

    @property
    def dead(self) -> EngineDeadError | None:
        """Why the engine stopped; None while it serves."""

    @property
    def seconds_silent(self) -> float:
        """Seconds since the engine's last sign of life: a finished step, or having nothing to do."""

    @property
    def max_model_len(self) -> int:
        """Longest sequence, prompt and output together, that the model and the KV cache take."""

    @property
    def input_processor(self) -> InputProcessor:
        """Prepares prompts, in any thread, without running them."""

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that requests may have: `generate`, or those of a model that pools."""

    @property
    def reads_pairs(self) -> bool:
        """Whether two texts are joined as the tokenizer does it."""

    @property
    def labels(self) -> Mapping[int, str]:
        """Names of the model's classes by number, as its configuration states them."""

    def get_default_sampling_params(self) -> SamplingParams:
        """The parameters of requests without any."""

    async def get_tokenizer(self) -> Any:
        """The model's tokenizer."""

    def generate(
        self, prompt: Any, sampling_params: SamplingParams | None = None
    ) -> AsyncGenerator[RequestOutput, None]:
        """Complete a prompt, which may be a `ProcessedPrompt`; closing the iteration aborts the request."""

    def encode(
        self, prompt: Any, pooling_params: PoolingParams
    ) -> AsyncGenerator[PoolingRequestOutput[PoolingOutput], None]:
        """Pool a prompt, which may be a `ProcessedPrompt`; closing the iteration aborts the request."""

    async def in_engine(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function as `AsyncLLM.in_engine` does."""

    async def in_engine_of(self, prompt: ProcessedPrompt, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function as `AsyncLLM.in_engine_of` does."""

    async def check_health(self) -> None:
        """Raise an `EngineDeadError` if the engine stopped."""

    async def get_metrics(self) -> Sequence[Metric]:
        """The engine's metrics; waits until the step in flight is done."""

    async def get_metrics_by_replica(self) -> Mapping[str, Sequence[Metric]]:
        """The metrics of each of several engines, by its name; of the only one by an empty name."""
