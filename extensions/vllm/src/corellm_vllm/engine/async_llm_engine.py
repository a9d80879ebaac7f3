"""`AsyncLLM` as scripts written for vLLM call it, also by its older name `AsyncLLMEngine`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any, Self

from corellm.engine.async_llm import AsyncLLM as CoreAsyncLLM
from corellm.errors import ConfigError
from corellm.outputs import RequestOutput
from corellm.sampling_params import SamplingParams
from corellm_vllm.absent.exports import exports
from corellm_vllm.absent.names import LOADING_ARGUMENTS, METHODS, POOLED_ARGUMENTS, REQUEST_ARGUMENTS
from corellm_vllm.absent.table import absent_attribute, takes
from corellm_vllm.engine.arg_utils import EngineArgs, engine_arguments
from corellm_vllm.pooling_params import PoolingParams
from corellm_vllm.prompts import taken

if TYPE_CHECKING:  # of an extension, which may not be installed
    from corellm_lora.lora_request import LoRARequest
    from corellm_pooling.params import PoolingParams as CorePoolingParams
    from corellm_pooling.results import PoolingOutput, PoolingRequestOutput


class AsyncLLM(CoreAsyncLLM):
    """A loaded model that serves many coroutines at once; see `corellm.AsyncLLM`.

    Args:
        model: a directory, a hub name, or a checkpoint that a plugin ships.
        **engine_args: corellm's, or those of vLLM that ask for nothing that corellm lacks.

    Raises:
        ConfigError: an argument asks for something that corellm lacks; says what to use instead.
    """

    @takes({}, ConfigError)
    def __init__(self, model: Any, **engine_args: Any) -> None:
        super().__init__(**engine_arguments({"model": model, **engine_args}))

    @classmethod
    @takes(LOADING_ARGUMENTS, ConfigError)
    def from_engine_args(cls, engine_args: EngineArgs) -> Self:
        """Load the model of these arguments."""
        return cls(**vars(engine_args))

    def shutdown(self, timeout: float | None = None) -> None:
        """Stop the engine after its current step and free everything: the same as `close`."""
        self.close()

    if not TYPE_CHECKING:  # or type checkers would accept every name

        def __getattr__(self, name: str) -> Any:
            raise absent_attribute(self, name, METHODS)

    @takes(REQUEST_ARGUMENTS)
    def generate(
        self,
        prompt: Any,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int | None = None,
        lora_request: LoRARequest | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Complete a prompt, as `corellm.AsyncLLM.generate`."""
        return super().generate(
            taken(prompt), sampling_params, request_id, priority=priority, lora_request=lora_request
        )

    @takes(REQUEST_ARGUMENTS)
    def chat(
        self,
        messages: Any,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        **chat_args: Any,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Complete a conversation, as `corellm.AsyncLLM.chat`."""
        return super().chat(messages, sampling_params, request_id, **chat_args)

    @takes(POOLED_ARGUMENTS)
    def encode(
        self,
        prompt: Any,
        pooling_params: PoolingParams | CorePoolingParams,
        request_id: str | None = None,
        *,
        priority: int | None = None,
    ) -> AsyncGenerator[PoolingRequestOutput[PoolingOutput], None]:
        """Pool a prompt, as `corellm.AsyncLLM.encode`; without a task by the model's first one."""
        params = pooling_params
        if isinstance(params, PoolingParams):
            params = params.of(next(iter(self.tasks), "embed"))
        return super().encode(taken(prompt), params, request_id, priority=priority)


AsyncLLMEngine = AsyncLLM

__all__ = ["AsyncLLM", "AsyncLLMEngine"]
__getattr__ = exports(__name__)
