"""The settings of drafts, `speculative_config`: read and checked once. Keys are vLLM's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from os import PathLike
from typing import Any

from corellm.config import suggestion
from corellm.errors import ConfigError

EAGLE3 = "eagle3"
HEADS = ("eagle", EAGLE3)
METHODS = ("ngram", "suffix", "draft_model", *HEADS, "forms")
_OTHER_HEADS = ("medusa", "mlp_speculator", "mtp")
_PREFIXES = {"prompt_lookup": "ngram", "suffix_decoding": "suffix"}
"""Beginnings of names of settings, and whose they are; `model` and what else says which are a draft model's."""
_OF_A_MODEL = ("model", "revision", "quantization")
_WITH_A_MODEL = ("draft_model", *HEADS)
_LOOKUP = 5
"""Tokens that are compared, where `ngram` is told no number."""
_OF_FORMS = 16
"""Drafts of `forms`, where it is told no number."""
SHORTEST_SUFFIX = 3
"""Fewest last tokens that must have come before, for `suffix`."""
_MOST_DRAFTS, _MOST_COMPARED = 64, 1024
"""Memory is planned for the logits of each draft; each compared token takes time."""


@dataclass(frozen=True, kw_only=True)
class DraftSettings:
    """How the next tokens are guessed."""

    method: str
    """`ngram` looks for the last tokens in the request's own text, prompt and output; `suffix` also in the outputs of
    earlier requests; `draft_model` has a smaller model say what comes next; `eagle` and `eagle3` have a head do so,
    which reads the model's hidden states; `forms` takes what the form of an output leaves no choice of."""
    num_speculative_tokens: int = 0
    """Most drafts of a request in a step. `suffix` takes `suffix_decoding_max_tree_depth`, `forms` 16; the others must
    be told."""
    model: str | None = None
    """`draft_model`: a directory or a hub name, of a model with the same tokenizer; `eagle`, `eagle3`: of a head for
    the model. It has the dtype, device and attention backend of the model."""
    revision: str | None = None
    """Branch, tag or commit of a hub `model`."""
    quantization: str | None = None
    """`int8` or `int4` rounds the weights of `model` when they are loaded."""
    prompt_lookup_min: int = 0
    """`ngram`: fewest last tokens that must have come before; as `prompt_lookup_max`, or 5."""
    prompt_lookup_max: int = 0
    """`ngram`: most last tokens that are compared; as `prompt_lookup_min`, or 5."""
    suffix_decoding_max_tree_depth: int = 24
    """`suffix`: most last tokens that are compared."""
    suffix_decoding_max_cached_requests: int = 10_000
    """`suffix`: most outputs that are kept; 0 for none."""
    suffix_decoding_max_spec_factor: float = 1.0
    """`suffix`: most drafts for each token that came before."""
    suffix_decoding_min_token_prob: float = 0.1
    """`suffix`: the least chance of being right, as measured, of a draft."""

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> DraftSettings:
        """Return the settings that `speculative_config` states.

        Raises:
            ConfigError: an unknown key or method, or a value out of range; names it.
        """
        known = [field.name for field in fields(cls)]
        method = given.get("method")
        if method is None and given.get("model") is not None:
            method = "draft_model"
        if method in _OTHER_HEADS:
            raise ConfigError(
                f"speculative_config: heads of the kind {method!r} are not there; methods that are: "
                f"{', '.join(METHODS)}"
            )
        if method not in METHODS:
            raise ConfigError(f"speculative_config: method must be one of {', '.join(METHODS)}; got {method!r:.100}")
        for name in given:
            if name not in known:
                raise ConfigError(f"speculative_config has no {name!r:.100}{suggestion(str(name), known)}")
            if method not in _methods_of(name):
                raise ConfigError(f"speculative_config: {name} is not a setting of the method {method!r}")
        return cls(**{**{name: value for name, value in given.items() if value is not None}, "method": method})

    def __post_init__(self) -> None:
        if isinstance(self.model, PathLike):
            self._set("model", str(self.model))
        least = self.prompt_lookup_min or self.prompt_lookup_max or _LOOKUP
        self._set("prompt_lookup_max", self.prompt_lookup_max or least)
        self._set("prompt_lookup_min", least)
        if self.method == "suffix":
            self._set(
                "num_speculative_tokens",
                self.num_speculative_tokens or min(self.suffix_decoding_max_tree_depth, _MOST_DRAFTS),
            )
        elif self.method == "forms":
            self._set("num_speculative_tokens", self.num_speculative_tokens or _OF_FORMS)
        elif self.num_speculative_tokens == 0:
            raise ConfigError(
                f"speculative_config: the method {self.method!r} needs num_speculative_tokens, most drafts of a "
                f"request in a step: an integer from 1 to {_MOST_DRAFTS}"
            )
        if self.method in _WITH_A_MODEL and (not isinstance(self.model, str) or not self.model):
            raise ConfigError(
                f"speculative_config: the method {self.method!r} needs model, a directory or a hub name; got "
                f"{self.model!r:.100}"
            )
        _integer("num_speculative_tokens", self.num_speculative_tokens, 1, _MOST_DRAFTS)
        _integer("prompt_lookup_min", self.prompt_lookup_min, 1, _MOST_COMPARED)
        _integer("prompt_lookup_max", self.prompt_lookup_max, self.prompt_lookup_min, _MOST_COMPARED)
        _integer("suffix_decoding_max_tree_depth", self.suffix_decoding_max_tree_depth, SHORTEST_SUFFIX, _MOST_COMPARED)
        _integer("suffix_decoding_max_cached_requests", self.suffix_decoding_max_cached_requests, 0, 1 << 32)
        _number("suffix_decoding_max_spec_factor", self.suffix_decoding_max_spec_factor, float("inf"))
        _number("suffix_decoding_min_token_prob", self.suffix_decoding_min_token_prob, 1)

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)


def _methods_of(name: str) -> tuple[str, ...]:
    """Return the methods that have a setting."""
    if name in _OF_A_MODEL:
        return _WITH_A_MODEL
    return next(((method,) for prefix, method in _PREFIXES.items() if name.startswith(prefix)), METHODS)


def _integer(name: str, value: Any, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ConfigError(f"speculative_config: {name} must be an integer from {least} to {most}, got {value!r:.100}")


def _number(name: str, value: Any, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= most:
        raise ConfigError(f"speculative_config: {name} must be a number from 0 to {most}, got {value!r:.100}")
