"""`LLM` as scripts written for vLLM call it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from corellm.errors import ConfigError
from corellm.llm import LLM as CoreLLM
from corellm.llm import OnError
from corellm.outputs import RequestOutput
from corellm.sampling_params import SamplingParams
from corellm_vllm.absent.exports import exports
from corellm_vllm.absent.names import METHODS, POOLED_ARGUMENTS, REQUEST_ARGUMENTS, SCORE_ARGUMENTS
from corellm_vllm.absent.table import absent_attribute, takes
from corellm_vllm.beam_search import BeamSearchOutput, output_of
from corellm_vllm.engine.arg_utils import EngineArgs, engine_arguments
from corellm_vllm.engine.llm_engine import LLMEngine
from corellm_vllm.pooling_params import PoolingParams
from corellm_vllm.prompts import each_taken

if TYPE_CHECKING:  # of an extension, which may not be installed
    from corellm_lora.lora_request import LoRARequest
    from corellm_pooling.params import PoolingParams as CorePoolingParams
    from corellm_pooling.results import (
        ClassificationOutput,
        EmbeddingOutput,
        PoolingOutput,
        PoolingRequestOutput,
        ScoringOutput,
    )

Bar = bool | Callable[..., Any]
Pooling: TypeAlias = "PoolingParams | CorePoolingParams | None"


class LLM(CoreLLM):
    """A loaded model that completes lists of prompts; see `corellm.LLM`.

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
    def from_engine_args(cls, engine_args: EngineArgs) -> Self:
        """Load the model of these arguments."""
        return cls(**vars(engine_args))

    @property
    def llm_engine(self) -> LLMEngine:
        """The engine, to step it by hand."""
        return LLMEngine(self.engine)

    def shutdown(self) -> None:
        """Free the model: the same as `close`."""
        self.close()

    if not TYPE_CHECKING:  # or type checkers would accept every name

        def __getattr__(self, name: str) -> Any:
            raise absent_attribute(self, name, METHODS)

    @takes(REQUEST_ARGUMENTS)
    def generate(
        self,
        prompts: Any,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: Bar = True,
        *,
        on_error: OnError = "raise",
        priority: Sequence[int] | None = None,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
    ) -> list[RequestOutput]:
        """Complete prompts, as `corellm.LLM.generate`."""
        given = each_taken(prompts)
        return super().generate(
            given, sampling_params, use_tqdm, on_error=on_error, priority=priority, lora_request=lora_request
        )

    @takes(REQUEST_ARGUMENTS)
    def chat(
        self,
        messages: Any,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: Bar = True,
        **chat_args: Any,
    ) -> list[RequestOutput]:
        """Complete conversations, as `corellm.LLM.chat`."""
        return super().chat(messages, sampling_params, use_tqdm, **chat_args)

    if not TYPE_CHECKING:  # the core's is an extension's, of another result

        @takes(REQUEST_ARGUMENTS)
        def beam_search(
            self,
            prompts: Any,
            params: Any,
            lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
            use_tqdm: Bar = False,
            concurrency_limit: int | None = None,
        ) -> list[BeamSearchOutput]:
            """Search for the most likely outputs of prompts, as `corellm.LLM.beam_search`.

            There is no bar; how many run at once is the engine's to know.
            """
            found = super().beam_search(each_taken(prompts), params, lora_request=lora_request)
            return [output_of(output, self.get_tokenizer()) for output in found]

    # --- models that pool -------------------------------------------------------------------------------------------

    @takes(POOLED_ARGUMENTS)
    def encode(
        self,
        prompts: Any,
        pooling_params: Pooling = None,
        use_tqdm: Bar = True,
        *,
        pooling_task: str | None = None,
        truncate_prompt_tokens: int | None = None,
        on_error: OnError = "raise",
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """Pool prompts, as arrays: `outputs.data`. Without a task the model's first one."""
        first = next(iter(self.engine.tasks), "embed")
        call = super().encode  # raises where pooling is not installed
        asked = _asked(pooling_params, pooling_task or first, truncate_prompt_tokens)
        return call(
            each_taken(prompts),
            pooling_task=asked.task,
            dimensions=asked.dimensions,
            use_activation=asked.use_activation,
            truncate_prompt_tokens=asked.truncate_prompt_tokens,
            use_tqdm=use_tqdm,
            on_error=on_error,
        )

    @takes(POOLED_ARGUMENTS)
    def embed(
        self,
        prompts: Any,
        *,
        pooling_params: Pooling = None,
        truncate_prompt_tokens: int | None = None,
        use_tqdm: Bar = True,
        on_error: OnError = "raise",
    ) -> list[PoolingRequestOutput[EmbeddingOutput]]:
        """Embed prompts: `outputs.embedding`."""
        call = super().embed  # raises where pooling is not installed
        asked = _asked(pooling_params, "embed", truncate_prompt_tokens)
        return call(
            each_taken(prompts),
            dimensions=asked.dimensions,
            normalize=asked.use_activation,
            truncate_prompt_tokens=asked.truncate_prompt_tokens,
            use_tqdm=use_tqdm,
            on_error=on_error,
        )

    @takes(POOLED_ARGUMENTS)
    def classify(
        self,
        prompts: Any,
        *,
        pooling_params: Pooling = None,
        truncate_prompt_tokens: int | None = None,
        use_tqdm: Bar = True,
        on_error: OnError = "raise",
    ) -> list[PoolingRequestOutput[ClassificationOutput]]:
        """Classify prompts: `outputs.probs`."""
        call = super().classify  # raises where pooling is not installed
        asked = _asked(pooling_params, "classify", truncate_prompt_tokens)
        return call(
            each_taken(prompts),
            use_activation=asked.use_activation,
            truncate_prompt_tokens=asked.truncate_prompt_tokens,
            use_tqdm=use_tqdm,
            on_error=on_error,
        )

    @takes(POOLED_ARGUMENTS)
    def reward(
        self,
        prompts: Any,
        *,
        pooling_params: Pooling = None,
        truncate_prompt_tokens: int | None = None,
        use_tqdm: Bar = True,
        on_error: OnError = "raise",
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """Reward prompts: `outputs.data`."""
        call = super().reward  # raises where pooling is not installed
        asked = _asked(pooling_params, "reward", truncate_prompt_tokens)
        return call(
            each_taken(prompts),
            truncate_prompt_tokens=asked.truncate_prompt_tokens,
            use_tqdm=use_tqdm,
            on_error=on_error,
        )

    @takes({**POOLED_ARGUMENTS, **SCORE_ARGUMENTS})
    def score(
        self,
        data_1: Any,
        data_2: Any,
        *,
        pooling_params: Pooling = None,
        truncate_prompt_tokens: int | None = None,
        template: str | None = None,
        late_interaction: bool | None = None,
        use_tqdm: Bar = True,
        on_error: OnError = "raise",
    ) -> list[PoolingRequestOutput[ScoringOutput]]:
        """Score pairs of a query and a document: `outputs.score`; `template` has `{query}` and `{document}`."""
        call = super().score  # raises where pooling is not installed
        asked = _asked(pooling_params, "score", truncate_prompt_tokens)
        return call(
            each_taken(data_1),
            each_taken(data_2),
            template=template,
            late_interaction=late_interaction,
            use_activation=asked.use_activation,
            truncate_prompt_tokens=asked.truncate_prompt_tokens,
            use_tqdm=use_tqdm,
            on_error=on_error,
        )


def _asked(given: Pooling, task: str, truncate_prompt_tokens: int | None) -> CorePoolingParams:
    """What a call asks for: its parameters, or those of its arguments."""
    params = given if given is not None else PoolingParams(truncate_prompt_tokens=truncate_prompt_tokens)
    return params.of(task) if isinstance(params, PoolingParams) else params


__all__ = ["LLM"]
__getattr__ = exports(__name__)
