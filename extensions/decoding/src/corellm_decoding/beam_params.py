"""What a beam search is asked for. Knows fields and their ranges; knows neither tokens nor models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from corellm.errors import InvalidParameterError
from corellm.known_fields import KnownFields
from corellm.sampling_params import shown

MAX_BEAM_WIDTH = 128
MAX_TOKENS = 2**31 - 1


@dataclass(kw_only=True, frozen=True)
class BeamSearchParams(KnownFields):
    """How to search for the most likely outputs.

    Raises:
        InvalidParameterError: an unknown field, or a value out of range or of the wrong type; `param` names the field.
    """

    beam_width: int
    """How many outputs are followed, and returned. In [1, 128]."""
    max_tokens: int = 16
    """Most tokens of an output; fewer if the model does not take as many behind the prompt."""
    length_penalty: float = 1.0
    """A score is an output's log-probability divided by its number of tokens, the last one included, to this power."""
    early_stopping: bool | str = False
    """When to stop, once as many outputs ended as there are beams: then (True), when the best of the others would be no
    better if it ended now (False), or when none can become better (`"never"`)."""
    ignore_eos: bool = False
    """Go on after the model's end-of-sequence token."""
    temperature: float = 0.0
    """The log-probabilities are those at this temperature; at 0, as at 1, the model's own. At others each step looks at
    the whole vocabulary, which takes time accordingly."""
    logprobs: int | None = None
    """Report log-probabilities of this many most likely tokens at each position of the outputs; some come anyway."""
    include_stop_str_in_output: bool = False
    """Keep the text of the token that ended an output."""
    skip_special_tokens: bool = True
    """Leave special tokens out of the text."""

    def __post_init__(self) -> None:
        self._check_integer("beam_width", 1, MAX_BEAM_WIDTH)
        self._check_integer("max_tokens", 1, MAX_TOKENS)
        if self.logprobs is not None:
            self._check_integer("logprobs", 0, 100)
        self._check_number("length_penalty", -100.0, 100.0)
        self._check_number("temperature", 0.0, 1e6)
        if not (isinstance(self.early_stopping, bool) or self.early_stopping == "never"):
            raise self._wrong("early_stopping", "True, False or 'never'")
        for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"):
            if not isinstance(getattr(self, name), bool):
                raise self._wrong(name, "True or False")

    @classmethod
    def of(cls, given: Any) -> BeamSearchParams:
        """Return these parameters, or those of a mapping of their fields.

        Raises:
            InvalidParameterError: neither of both, or a wrong field.
        """
        if isinstance(given, Mapping):
            if "beam_width" not in given and given.keys() <= cls.__dataclass_fields__.keys():
                raise InvalidParameterError(
                    "beam_search needs beam_width, how many outputs to follow", param="beam_width"
                )
            return cls(**given)
        if not isinstance(given, BeamSearchParams):
            raise InvalidParameterError(
                f"params must be a BeamSearchParams or its fields, got {type(given).__name__}", param="params"
            )
        return given

    def _check_integer(self, name: str, low: int, high: int) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self._wrong(name, f"an integer in [{low}, {high}]")

    def _check_number(self, name: str, low: float, high: float) -> None:
        value = getattr(self, name)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not low <= value <= high:
            raise self._wrong(name, f"a number in [{low:g}, {high:g}]")

    def _wrong(self, name: str, wanted: str) -> InvalidParameterError:
        return InvalidParameterError(f"{name} must be {wanted}, got {shown(getattr(self, name))}", param=name)
