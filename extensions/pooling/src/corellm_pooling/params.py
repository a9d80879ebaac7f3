"""What a pooled request asks for, and how a model pools: `PoolingParams` of a request, `PoolerConfig` of a model.

Knows names and ranges; knows neither models nor tensors. Whether a loaded model has a task is in `use`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal

from corellm.config import suggestion
from corellm.errors import ConfigError, InvalidParameterError
from corellm.known_fields import KnownFields
from corellm.sampling_params import RequestOutputKind, shown

PoolingTask = Literal["embed", "token_embed", "classify", "token_classify", "score", "reward"]
POOLING_TASKS: tuple[PoolingTask, ...] = ("embed", "token_embed", "classify", "token_classify", "score", "reward")
SEQUENCE_POOLING = ("CLS", "LAST", "MEAN", "MAX", "MEAN_SQRT", "WEIGHTED")
"""One result for the prompt."""
TOKEN_POOLING = ("ALL", "STEP")
"""One result for every token, or for every step tag."""
Side = Literal["query", "document"]
"""The two sides of a comparison, which a ColBERT model reads differently."""
_MOST = 2**31 - 1
ACTIVATIONS = ("auto", "none", "sigmoid", "softmax")


@dataclass(frozen=True, kw_only=True)
class PoolingParams(KnownFields):
    """What a pooled request asks for.

    Raises:
        InvalidParameterError: an unknown field, or a value out of range or of the wrong type; `param` names the field.
    """

    task: PoolingTask
    """`embed`: one vector; `token_embed`: one for every token; `classify`: probabilities; `token_classify`: those of
    every token; `score`: one number; `reward`: of every token, or step."""
    dimensions: int | None = None
    """Length of embeddings: the first entries are kept, before normalisation; None for all."""
    use_activation: bool | None = None
    """Whether embeddings are normalised to length one, or classes given as probabilities; None for the model's own."""
    truncate_prompt_tokens: int | None = None
    """Keep this many of the prompt's first tokens, placeholders expanded, and the special tokens at its end; -1 for as
    many as fit. Items after them are left out; a prompt that would be cut within an item is refused."""

    token_type_ids: Sequence[int] | None = field(default=None, compare=False, repr=False)
    """Types of a prompt's tokens, 0 or 1, for encoders that take them; those of a pair of texts are set by the engine.
    """

    side: Side | None = field(default=None, compare=False, repr=False)
    """The side of a ColBERT model's prompt; set by the engine."""
    num_filled: int = field(default=0, compare=False, repr=False)
    """How many tokens fill it up, at its end; set by the engine."""

    output_kind: ClassVar[RequestOutputKind] = RequestOutputKind.FINAL_ONLY
    """There is one output, at the end."""

    def __post_init__(self) -> None:
        if self.task not in POOLING_TASKS:
            raise InvalidParameterError(
                f"task must be one of {', '.join(POOLING_TASKS)}; got {self.task!r:.100}", param="task"
            )
        for name, least in (("dimensions", 1), ("truncate_prompt_tokens", -1)):
            value = getattr(self, name)
            if value is None:
                continue
            is_whole = isinstance(value, int) and not isinstance(value, bool)
            if not is_whole or not least <= value <= _MOST or value == 0:
                wanted = f"an integer from 1 to {_MOST}" + (", or -1" if least < 0 else "")
                raise InvalidParameterError(f"{name} must be {wanted}, got {shown(value)}", param=name)
        if self.token_type_ids is not None and not {0, 1}.issuperset(self.token_type_ids):
            raise InvalidParameterError("token_type_ids must be 0 or 1, one for each token", param="token_type_ids")
        if self.dimensions is not None and self.task not in ("embed", "token_embed"):
            raise InvalidParameterError(
                f"dimensions cuts embeddings, and the task {self.task!r} gives none; leave it out", param="dimensions"
            )
        if not (self.use_activation is None or isinstance(self.use_activation, bool)):
            raise InvalidParameterError(
                f"use_activation must be True, False or None, got {shown(self.use_activation)}", param="use_activation"
            )


@dataclass(frozen=True, kw_only=True)
class PoolerConfig:
    """How a model pools; every None is what the checkpoint says, or the usual value.

    Raises:
        ConfigError: a value that is not possible.
    """

    pooling_type: str | None = None
    """Method of pooling. For tasks with one result per prompt `CLS` (first token), `LAST` (the default), `MEAN` (the
    default of encoders), `MAX`, `MEAN_SQRT` (the sum by the root of the length) or `WEIGHTED` (by position); for those
    with one per token `ALL` (the default) or `STEP` (only tokens that are `step_tag_id`)."""
    use_activation: bool | None = None
    """Normalise embeddings and give classes as probabilities, where a request does not say."""
    activation: str = "auto"
    """Activation of classes: `sigmoid`, `softmax`, `none`; `auto` follows the checkpoint's problem type and labels."""
    logit_bias: float = 0.0
    """Subtracted from the logits of classes."""
    logit_scale: float = 1.0
    """The logits of classes, less the bias, are multiplied by it."""
    step_tag_id: int | None = None
    """Token that ends a step, for rewards of steps."""
    returned_token_ids: tuple[int, ...] | None = None
    """Rows of the output layer to use as classes, for process reward models that score steps by tokens."""

    def __post_init__(self) -> None:
        known = (*SEQUENCE_POOLING, *TOKEN_POOLING)
        if self.pooling_type is not None and self.pooling_type not in known:
            raise ConfigError(f"pooling_type must be one of {', '.join(known)}; got {self.pooling_type!r}")
        if self.activation not in ACTIVATIONS:
            raise ConfigError(f"activation must be one of {', '.join(ACTIVATIONS)}; got {self.activation!r}")
        if self.pooling_type == "STEP" and self.step_tag_id is None:
            raise ConfigError("pooling_type='STEP' needs step_tag_id, the token at the end of each step")
        for name in ("logit_bias", "logit_scale"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < float("inf"):
                raise ConfigError(f"{name} must be a finite number, got {value!r}")

    @classmethod
    def of(cls, given: PoolerConfig | Mapping[str, Any] | None) -> PoolerConfig:
        """Return the configuration that was given, also as a dictionary.

        Raises:
            ConfigError: an unknown key or a wrong value.
        """
        if isinstance(given, cls):
            return given
        if given is not None and not isinstance(given, Mapping):
            raise ConfigError(f'pooler_config must be like {{"pooling_type": "MEAN"}}, got {given!r:.100}')
        values = dict(given or {})
        names = [known.name for known in fields(cls)]
        for name in values:
            if name not in names:
                raise ConfigError(f"pooler_config has no {name!r}{suggestion(str(name), names)}")
        if values.get("returned_token_ids") is not None:
            values["returned_token_ids"] = tuple(values["returned_token_ids"])
        return cls(**values)

    @property
    def sequence_pooling(self) -> str | None:
        """`pooling_type`, if it is one of those with one result per prompt."""
        return self.pooling_type if self.pooling_type in SEQUENCE_POOLING else None

    @property
    def pools_steps(self) -> bool:
        """Whether tasks with a result per token have one per step instead."""
        return self.pooling_type == "STEP" or (self.step_tag_id is not None and self.pooling_type != "ALL")
