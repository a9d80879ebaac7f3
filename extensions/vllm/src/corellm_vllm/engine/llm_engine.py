"""`LLMEngine` as scripts written for vLLM step it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Self, TypeVar

from corellm.engine.llm_engine import LLMEngine as CoreLLMEngine
from corellm.engine.maintenance import Maintenance
from corellm.errors import ConfigError
from corellm.outputs import RequestOutput
from corellm.prompts import keys_of_each
from corellm_vllm.absent.exports import exports
from corellm_vllm.absent.names import LOADING_ARGUMENTS, METHODS, REQUEST_ARGUMENTS, RESET_ARGUMENTS
from corellm_vllm.absent.table import absent_attribute, takes
from corellm_vllm.engine.arg_utils import EngineArgs
from corellm_vllm.pooling_params import PoolingParams
from corellm_vllm.prompts import taken

if TYPE_CHECKING:
    from corellm_lora.lora_request import LoRARequest

_Result = TypeVar("_Result")


class LLMEngine(Maintenance):
    """An engine that a script adds requests to and steps by hand.

    Args:
        engine: corellm's, which may be an `LLM`'s.
    """

    def __init__(self, engine: CoreLLMEngine) -> None:
        self.engine = engine
        """corellm's own."""

    @classmethod
    @takes(LOADING_ARGUMENTS, ConfigError)
    def from_engine_args(cls, engine_args: EngineArgs) -> Self:
        """Load the model of these arguments."""
        return cls(CoreLLMEngine.from_kwargs(**engine_args.engine_arguments()))

    if not TYPE_CHECKING:  # or type checkers would accept every name

        def __getattr__(self, name: str) -> Any:
            raise absent_attribute(self, name, METHODS)

    @takes(REQUEST_ARGUMENTS)
    def add_request(
        self,
        request_id: str,
        prompt: Any,
        params: Any = None,
        arrival_time: float | None = None,
        lora_request: LoRARequest | None = None,
        *,
        priority: int = 0,
    ) -> None:
        """Queue a request; errors as of `corellm.LLMEngine.add_request`."""
        if isinstance(params, PoolingParams):
            params = params.of(next(iter(self.engine.tasks), "embed"))
        (keys,) = keys_of_each(lora_request, 1)
        process = self.engine.input_processor.process
        processed = process(taken(prompt), priority=priority or None, prompt_keys=keys)
        self.engine.add_request(request_id, processed, params, arrival_time=arrival_time)

    def abort_request(self, request_id: str | Iterable[str]) -> None:
        """End one or several requests now."""
        for name in [request_id] if isinstance(request_id, str) else request_id:
            self.engine.abort_request(name)

    def step(self) -> list[RequestOutput]:
        """Run one batch; returns outputs of the requests that got a token or ended."""
        return self.engine.step()

    def has_unfinished_requests(self) -> bool:
        """Whether `step` has something to do."""
        return self.engine.has_unfinished_requests()

    def get_num_unfinished_requests(self) -> int:
        """Number of requests that are not finished."""
        return len(self.engine.output_processor)

    def get_tokenizer(self) -> Any:
        """The model's tokenizer."""
        return self.engine.context.tokenizer

    def in_engine(self, function: Callable[..., _Result], *arguments: Any) -> _Result:
        """Call a function with the engine, and further arguments; returns its result."""
        return function(self.engine, *arguments)

    @takes(RESET_ARGUMENTS)
    def reset_prefix_cache(self) -> bool:
        """Forget every cached prefix; False, and nothing done, while requests are in flight."""
        return super().reset_prefix_cache()

    def shutdown(self) -> None:
        """Free the model and the caches."""
        self.engine.shutdown()


__all__ = ["LLMEngine"]
__getattr__ = exports(__name__)
