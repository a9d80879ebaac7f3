"""What installed extensions change of the choice of tokens: the kinds of constraints, and logits processors.

Knows names and definitions, and who is asked about them; knows neither logits nor what a definition says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from corellm.errors import InvalidParameterError, RequestFailedError, install_hint
from corellm.plugin.extensions import first_result, offers_by_name
from corellm.sampling.constraint import Constraint, MakeConstraint
from corellm.sampling.processing import LogitsProcessing, is_processing
from corellm.sampling_params import ConstraintParams, SamplingParams
from corellm.structured_outputs import STRUCTURED
from corellm.system.failures import failure_of


@dataclass(frozen=True)
class SamplingExtensions:
    """What requests for one loaded model may have."""

    makers: Mapping[str, MakeConstraint] = field(default_factory=dict)
    """What makes constraints, by their kinds."""
    processing: LogitsProcessing | None = None
    """What applies `logits_processors`; None if no extension does."""

    def check_processors(self, params: SamplingParams) -> None:
        """Check the functions of a request that change logits.

        Raises:
            InvalidParameterError: they cannot be applied; says why.
        """
        if self.processing is None:
            raise InvalidParameterError(
                f"logits_processors needs {install_hint('decoding')}", param="logits_processors"
            )
        self.processing.check(params)

    def check(self, params: ConstraintParams) -> None:
        """Check the constraint of a request; raises as `make`."""
        self.make(params, None)

    def prepare(self) -> None:
        """Have the extensions compute what their constraints share."""
        for make in self.makers.values():
            if (prepare := getattr(make, "prepare", None)) is not None:
                prepare()

    def make(self, params: ConstraintParams, stop_token_ids: frozenset[int] | None) -> Constraint:
        """Make a constraint; arguments as of `MakeConstraint`.

        Raises:
            InvalidParameterError: the kind is unknown, or the definition wrong.
            RequestFailedError: the extension failed otherwise.
        """
        make = self.makers.get(params.kind)
        if make is None and params.kind == STRUCTURED:
            raise InvalidParameterError(
                f"structured_outputs needs {install_hint('structured')}", param="structured_outputs"
            )
        if make is None:
            raise InvalidParameterError(
                f"constraint: no installed extension makes constraints of the kind {params.kind!r:.100} "
                f"(kinds that are known: {', '.join(sorted(self.makers)) or 'none'}); install one that does, or take "
                "allowed_token_ids",
                param="constraint",
            )
        try:
            return make(params.definition, stop_token_ids)
        except Exception as error:
            failure = failure_of(f"making the constraint {params.kind!r:.100}", error, RequestFailedError)
        raise failure


NO_EXTENSIONS = SamplingExtensions()


def find_extensions(tokenizer: Any, vocab_size: int) -> SamplingExtensions:
    """Return what the installed extensions have for a model; arguments as of `register_constraints`.

    Raises:
        ContractError: two extensions make the same kind.
    """
    model: dict[str, Any] = {"tokenizer": tokenizer, "vocab_size": vocab_size}
    offers = offers_by_name("register_constraints", callable, "make constraints of the kind", **model)
    processing = first_result("offer_logits_processing", is_processing, **model)
    return SamplingExtensions({kind: make for _, kind, make in offers}, processing)
