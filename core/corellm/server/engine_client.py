"""What the server needs of an engine: `AsyncLLM` in this process, or the client of one in a process of its own."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import Any, Protocol

from corellm.engine.input_processor import InputProcessor
from corellm.engine.metrics import Metric
from corellm.errors import EngineDeadError
from corellm.outputs import RequestOutput
from corellm.sampling_params import SamplingParams


class EngineClient(Protocol):
    """A loaded model that serves many coroutines at once; methods are documented at `AsyncLLM`."""

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

    def get_default_sampling_params(self) -> SamplingParams:
        """The parameters of requests without any."""

    async def get_tokenizer(self) -> Any:
        """The model's tokenizer."""

    def generate(
        self,
        prompt: Any,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Complete a prompt, which may be a `ProcessedPrompt`; closing the iteration aborts the request."""

    def chat(
        self,
        messages: Any,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        **chat_args: Any,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Complete a conversation."""

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """Abort one or several requests."""

    async def check_health(self) -> None:
        """Raise an `EngineDeadError` if the engine stopped."""

    async def get_metrics(self) -> Sequence[Metric]:
        """The engine's metrics; waits until the step in flight is done."""

    async def reset_prefix_cache(self) -> bool:
        """Forget cached prefixes, unless requests hold some."""

    async def reset_mm_cache(self) -> None:
        """Forget processed items."""

    def close(self) -> None:
        """Stop the engine; fail every unfinished request."""
