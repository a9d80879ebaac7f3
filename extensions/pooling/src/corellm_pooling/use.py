"""Pooling as a use of a model: what differs from text generation, from the located checkpoint to the requests.

Knows which part does what; imports no torch before the model is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corellm.config import ModelConfig
from corellm.errors import ConfigError, InvalidParameterError
from corellm.loading.model_use import ModelUse
from corellm.sampling_params import SamplingParams
from corellm.serving import InputProcessor, ProcessedPrompt
from corellm_pooling.inputs import PooledInputs, PooledPrompt
from corellm_pooling.late_interaction import text_sides
from corellm_pooling.params import PoolerConfig, PoolingParams
from corellm_pooling.sentence_transformers import read_stated_pooling
from corellm_pooling.settings import WAYS, Conversion, generative_names, resolve
from corellm_pooling.truncation import ready_to_pool

if TYPE_CHECKING:
    from corellm.config import EngineConfig
    from corellm.hookspecs import ModelContext
    from corellm.loading.loading import LoadedModel
    from corellm.loading.opening import OpenedModel
    from corellm.worker.model_runner import ModelRunner
    from corellm_pooling.codec import PooledCodec
    from corellm_pooling.engine import PoolingEngine


def use_of(config: ModelConfig, path: Path, architectures: Sequence[str]) -> PoolingUse | None:
    """Return how a checkpoint is pooled; None for one that generates text.

    Raises:
        ConfigError, CheckpointError: the settings do not combine, or the checkpoint's cannot be read.
    """
    PoolerConfig.of(config.pooler_config)  # refused before weights are read
    stated = read_stated_pooling(path) is not None
    conversion = resolve(config.runner, config.convert, (*architectures, "")[0], states_pooling=stated)
    if conversion is not None:
        return PoolingUse(conversion)
    if config.pooler_config:
        raise ConfigError(
            f"pooler_config={config.pooler_config!r:.100}: the model was loaded to generate text, which pools nothing; "
            "set convert='embed' or convert='classify', or leave it out"
        )
    return None


class PoolingUse(ModelUse):
    """A model that gives vectors, classes, scores or rewards.

    Args:
        conversion: what it becomes.
    """

    def __init__(self, conversion: Conversion) -> None:
        self.conversion = conversion

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that requests may have."""
        return self.conversion.tasks

    @property
    def engine_class(self) -> type[PoolingEngine]:
        """The engine that serves the model."""
        from corellm_pooling.engine import PoolingEngine

        return PoolingEngine

    @property
    def codec(self) -> PooledCodec:
        """How requests go to and from an engine in another process."""
        from corellm_pooling.codec import PooledCodec

        return PooledCodec()

    # --- the load ---------------------------------------------------------------------------------------------------

    def further_names(self, architecture: str) -> Sequence[str]:
        """Return the names of the family's models that generate text."""
        return generative_names(architecture)

    def settle_config(self, hf_config: Any, architectures: Sequence[str]) -> None:
        """Give a decoder the name that generates text: by that a family's adapter knows it."""
        from corellm.modelling.configurations import is_text_encoder

        self.takes_prompt_keys = not is_text_encoder(hf_config)
        if self.takes_prompt_keys:
            hf_config.architectures = list(architectures)

    def input_processor(self, context: ModelContext, max_model_len: int) -> Callable[..., InputProcessor]:
        """Return what makes the processor of prompts, with the texts that the checkpoint states."""
        stated = read_stated_pooling(context.model_path)
        if stated is None:
            return PooledInputs
        if stated.lowers_case:
            _lower_case(context.tokenizer)
        sides = None if stated.late is None else text_sides(stated.late, context.tokenizer, max_model_len)
        return partial(PooledInputs, named=stated.prompts, default_name=stated.default_prompt, sides=sides)

    def load(self, config: EngineConfig, opened: OpenedModel, on_failure: ExitStack) -> LoadedModel | None:
        """Load an encoder-only text model; return None for a decoder."""
        from corellm.modelling.configurations import is_text_encoder

        if not is_text_encoder(opened.context.hf_config):
            return None
        from corellm_pooling.text_encoders.loading import load_text_encoder

        return load_text_encoder(config, opened, on_failure, self.conversion)

    def adapt_class(self, cls: type[Any]) -> type[Any]:
        """Return the class to load in place of a transformers class."""
        from corellm_pooling.building import adapted_class

        adapted: type[Any] = adapted_class(cls, self.conversion)
        return adapted

    def runner(
        self, config: EngineConfig, context: ModelContext, model: Any, hidden_size: int
    ) -> Callable[..., ModelRunner]:
        """Return what makes the worker, with the model's pooler.

        Raises:
            CheckpointError, ConfigError: there is no head, or it does not fit.
        """
        from corellm_pooling.building import build_pooler
        from corellm_pooling.runner import PoolingRunner

        return partial(PoolingRunner, build_pooler(config, context, model, self.conversion, hidden_size))

    # --- requests ---------------------------------------------------------------------------------------------------

    def check_task(self, task: str) -> None:
        """Refuse a task that the model was not loaded for.

        Raises:
            InvalidParameterError: says how to load it.
        """
        convert, is_reward = self.conversion.convert, self.conversion.is_reward
        if task in self.tasks or (convert == "none" and task != "generate"):
            return
        way = WAYS[task]
        if is_reward and task in ("classify", "score"):
            way = "the head of a reward model is for every token: use reward, and take the token that you need"
        elif convert == "classify" and task == "reward":
            way = "a head for classes gives its reward of a prompt as classify, as a logit with use_activation=False"
        raise InvalidParameterError(
            f"the model was loaded with runner='pooling', convert={convert!r}, which has no task {task!r} (it has "
            f"{', '.join(self.tasks) or 'those of its class'}); {way}",
            param="task",
        )

    def own_params(self, given: Any, default: SamplingParams, tasks: Sequence[str]) -> PoolingParams:
        """Return the parameters of a request, as they cannot be changed; arguments and errors as of the base."""
        if not isinstance(given, PoolingParams):
            if given is None or isinstance(given, SamplingParams):
                self.check_task("generate")
            raise InvalidParameterError(
                f"pooling_params must be a PoolingParams, got {type(given).__name__}", param="pooling_params"
            )
        self.check_task(given.task)
        if given.task not in tasks:
            raise InvalidParameterError(
                f"the model has no task {given.task!r}: it has {', '.join(tasks)}"
                + (" (a score needs a head with one label)" if given.task == "score" else ""),
                param="task",
            )
        return given

    def ready(
        self, prompt: ProcessedPrompt, params: PoolingParams, longest: int, inputs: InputProcessor
    ) -> tuple[ProcessedPrompt, PoolingParams]:
        """Return the prompt that the model reads, and what its worker must know of it; errors as of `ready_to_pool`."""
        pooled = prompt if isinstance(prompt, PooledPrompt) else PooledPrompt.of(prompt)  # as it came from a process
        return ready_to_pool(pooled, params, longest, inputs.end_tokens)


def _lower_case(tokenizer: Any) -> None:
    """Let a tokenizer read all text in lower case."""
    from tokenizers.normalizers import Lowercase, Sequence

    backend = tokenizer.backend_tokenizer
    backend.normalizer = Sequence([Lowercase(), *([] if backend.normalizer is None else [backend.normalizer])])
