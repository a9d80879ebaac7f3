"""What a model is run for: to generate text, unless an extension offers another use of its checkpoint (`offer_use`).

A use is made where a checkpoint is located, and goes through the load to the requests: what it overrides is all that
differs. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from corellm.errors import InvalidParameterError
from corellm.frontend.input_processor import InputProcessor, ProcessedPrompt
from corellm.frontend.truncation import truncated
from corellm.sampling_params import SamplingParams, params_copy

if TYPE_CHECKING:  # most import torch
    from corellm.config import EngineConfig
    from corellm.engine.llm_engine import LLMEngine
    from corellm.engine.process.codec import RequestCodec
    from corellm.hookspecs import ModelContext
    from corellm.loading.loading import LoadedModel
    from corellm.loading.opening import OpenedModel
    from corellm.worker.model_runner import ModelRunner


class ModelUse:
    """Text generation, and the base of other uses."""

    takes_prompt_keys = True
    """Whether prompts may have keys of extensions, for parts beside a decoder."""
    adapt_class: Callable[[type[Any]], type[Any]] | None = None
    """Returns the class to load in place of a transformers class; None for that class."""

    @property
    def engine_class(self) -> type[LLMEngine] | None:
        """The engine that serves the model; None for `LLMEngine`."""
        return None

    @property
    def codec(self) -> RequestCodec | None:
        """How requests go to and from an engine in another process; None for `RequestCodec`."""
        return None

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that requests may have."""
        return ("generate",)

    # --- the load ---------------------------------------------------------------------------------------------------

    def further_names(self, architecture: str) -> Sequence[str]:
        """Return architectures under which a plugin may serve a checkpoint whose own name nobody claims."""
        return ()

    def settle_config(self, hf_config: Any, architectures: Sequence[str]) -> None:
        """Change a checkpoint's configuration before the adapter sees it, which was found under these names."""

    def input_processor(self, context: ModelContext, max_model_len: int) -> Callable[..., InputProcessor]:
        """Return what makes the processor of prompts."""
        return InputProcessor

    def load(self, config: EngineConfig, opened: OpenedModel, on_failure: ExitStack) -> LoadedModel | None:
        """Load a model that is no decoder, with the arguments and errors of `corellm.loading.loading`; None for one."""
        return None

    def runner(
        self, config: EngineConfig, context: ModelContext, model: Any, hidden_size: int
    ) -> Callable[..., ModelRunner] | None:
        """Return what makes the worker of a decoder that has no logits; None for one that has, which are sampled from.

        Raises:
            CheckpointError, ConfigError: the model lacks what the use needs.
        """
        return None

    # --- requests ---------------------------------------------------------------------------------------------------

    def check_task(self, task: str) -> None:
        """Refuse a task that the model was not loaded for.

        Raises:
            InvalidParameterError: says how to load it.
        """
        if task not in self.tasks:
            raise InvalidParameterError(
                f"the model was loaded to generate text, which has no task {task!r:.100}; load the model with another "
                "runner or convert",
                param="task",
            )

    def own_params(self, given: Any, default: SamplingParams, tasks: Sequence[str]) -> Any:
        """Return a request's own parameters, checked.

        Args:
            given: by the caller.
            default: for None.
            tasks: of the loaded model, which may have fewer than its use.

        Raises:
            InvalidParameterError: they are of another use, or have a wrong value.
        """
        if given is not None and not isinstance(given, SamplingParams) and hasattr(given, "task"):
            self.check_task(given.task)
        return default.clone() if given is None else params_copy(given)

    def ready(
        self, prompt: ProcessedPrompt, params: Any, longest: int, inputs: InputProcessor
    ) -> tuple[ProcessedPrompt, Any]:
        """Return the prompt that the model reads, and its parameters.

        Args:
            prompt: as it was prepared.
            params: from `own_params`.
            longest: sequence, prompt and output together.
            inputs: the model's.

        Raises:
            RequestError: it does not fit, or the parameters do not fit the model.
        """
        inputs.check_params(params)
        if params.truncate_prompt_tokens is not None:
            prompt = truncated(prompt, params, longest)
        return prompt, params
