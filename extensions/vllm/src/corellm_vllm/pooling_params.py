"""`PoolingParams` whose task may be left to the call, and that takes parameters which corellm lacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from corellm.known_fields import KnownFields
from corellm_vllm.absent.exports import exports
from corellm_vllm.absent.names import POOLING_ARGUMENTS
from corellm_vllm.absent.table import check_absent

if TYPE_CHECKING:
    from corellm_pooling.params import PoolingParams as OfCorellm


@dataclass(kw_only=True)
class PoolingParams(KnownFields):
    """What a pooled request asks for; fields as of `corellm.PoolingParams`.

    Raises:
        InvalidParameterError: an unknown field, a value out of range or of the wrong type, or something that corellm
            lacks; `param` names the field.
    """

    truncate_prompt_tokens: int | None = None
    dimensions: int | None = None
    use_activation: bool | None = None
    task: str | None = None
    """None for that of the call, or the model's first."""
    token_type_ids: Sequence[int] | None = None
    normalize: bool | None = None
    softmax: bool | None = None
    activation: bool | None = None
    requires_token_ids: Any = None
    returned_token_ids: Any = None
    step_tag_id: Any = None
    skip_reading_prefix_cache: Any = None
    late_interaction_params: Any = None
    extra_kwargs: Any = None

    def __post_init__(self) -> None:
        check_absent("PoolingParams", {name: getattr(self, name) for name in POOLING_ARGUMENTS}, POOLING_ARGUMENTS)
        older = (self.normalize, self.softmax, self.activation)
        self.use_activation = next((value for value in (self.use_activation, *older) if value is not None), None)
        self.of(self.task or "token_embed")

    def of(self, task: str) -> OfCorellm:
        """Return the engine's parameters, for a task where they have none.

        Raises:
            InvalidParameterError: a value out of range, or one that does not fit the task.
        """
        from corellm import PoolingParams as OfCorellm

        return OfCorellm(
            task=self.task or task,  # type: ignore[arg-type]  # which is checked
            dimensions=self.dimensions,
            use_activation=self.use_activation,
            truncate_prompt_tokens=self.truncate_prompt_tokens,
            token_type_ids=self.token_type_ids,
        )


__all__ = ["PoolingParams", "PoolingTask"]  # noqa: F822 - the second is found when it is asked for
__getattr__ = exports(__name__, {"PoolingTask": "corellm_pooling.params"})
