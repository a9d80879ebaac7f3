"""What an adapter's `adapter_config.json` states, as PEFT writes it; what cannot be done is refused.

Knows the fields and what they mean for a layer; knows no weights and no model.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import regex

from corellm_lora.errors import refusal

_WITHOUT_EFFECT = frozenset(
    {
        # of training
        "lora_dropout", "inference_mode", "loftq_config", "eva_config", "corda_config", "lora_ga_config",
        "ensure_weight_tying", "qalora_group_size", "runtime_config",
        # about which modules get an adapter, which the files show
        "target_modules", "exclude_modules", "layers_to_transform", "layers_pattern",
        # about the base model and the library
        "task_type", "base_model_name_or_path", "revision", "auto_mapping", "peft_version", "megatron_core",
        "fan_in_fan_out",  # how the base model's weight lies
    }
)  # fmt: skip
"""Fields that change no output of an adapter whose factors are in its file."""
_READ = frozenset(
    {
        "peft_type", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "bias", "init_lora_weights",
        "use_dora", "lora_bias", "modules_to_save", "trainable_token_indices", "target_parameters",
    }
)  # fmt: skip
_PLAIN_INITS = (None, True, False, "gaussian", "eva", "orthogonal")
"""Ways of making the first factors that leave the base model's weights as they are."""
_BIASES = ("none", "all", "lora_only")
_MOST_SECONDS = 0.2
"""Of a processor, for the match of a pattern's key and a module's name: some regular expressions take for ever."""
_REASONS = {
    "layer_replication": "layers of the base model cannot be replicated; save the model with its copies",
}
"""Reasons for refusal, with the way out, by field that would have an effect."""
_UNKNOWN = "what this field asks for cannot be served; merge the adapter into the checkpoint (peft: merge_and_unload)"


@dataclass(frozen=True)
class AdapterConfig:
    """The fields that are heeded."""

    r: int
    lora_alpha: float
    use_rslora: bool = False
    rank_pattern: Mapping[str, int] = field(default_factory=dict)
    """Ranks of modules whose name ends in what the key matches."""
    alpha_pattern: Mapping[str, float] = field(default_factory=dict)
    use_dora: bool = False
    lora_bias: bool = False
    modules_to_save: tuple[str, ...] = ()
    """Modules that were trained whole, by the ends of their names."""
    token_indices: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Tokens whose embeddings were trained, by the end of the name of a module; "" for that of all tokens."""
    target_parameters: tuple[str, ...] = ()
    """Parameters that have factors, by the ends of their names."""

    @classmethod
    def of(cls, stated: Mapping[str, Any], where: str) -> Self:
        """Return what a file states.

        Args:
            stated: the file's object.
            where: the adapter, for messages.

        Raises:
            InvalidParameterError: it asks for something that cannot be done, or is broken.
        """
        if (kind := stated.get("peft_type")) != "LORA":
            raise refusal(where, f"peft_type is {kind!r:.60}; adapters of peft_type 'LORA' can be served")
        for name, value in stated.items():
            if value and name not in _WITHOUT_EFFECT and name not in _READ:
                raise refusal(where, f"{name}={value!r:.60}: {_REASONS.get(name, _UNKNOWN)}")
        if (bias := stated.get("bias", "none")) not in _BIASES:
            raise refusal(where, f"bias must be one of {', '.join(_BIASES)}, got {bias!r:.60}")
        if (init := stated.get("init_lora_weights")) not in _PLAIN_INITS:
            raise refusal(
                where,
                f"init_lora_weights={init!r:.60} goes with changed weights of the base model; save the adapter "
                "converted (peft: save_pretrained with path_initial_model_for_weight_conversion)",
            )
        ranks, alphas = (_pattern(stated, name, where) for name in ("rank_pattern", "alpha_pattern"))
        r, alpha = stated.get("r"), stated.get("lora_alpha", 8)
        for name, value in (("r", r), ("lora_alpha", alpha)):
            _check_number(name, value, where, is_rank=name == "r")
        flags = {name: bool(stated.get(name)) for name in ("use_rslora", "use_dora", "lora_bias")}
        saved, parameters = (_names(stated, name, where) for name in ("modules_to_save", "target_parameters"))
        return cls(
            int(r or 0), float(alpha), rank_pattern=ranks, alpha_pattern=alphas, modules_to_save=saved,
            token_indices=_token_indices(stated.get("trainable_token_indices") or {}, where),
            target_parameters=parameters, **flags,
        )  # fmt: skip

    def tokens_of(self, module: str) -> tuple[int, ...]:
        """Return the tokens whose embeddings in a module were trained."""
        names = (name for name in self.token_indices if not name or f".{module}".endswith(f".{name}"))
        return next((self.token_indices[name] for name in names), ())

    def targets_parameter(self, name: str) -> bool:
        """Return whether a parameter has factors."""
        return any(f".{name}".endswith(f".{end}") for end in self.target_parameters)

    def rank_of(self, module: str) -> int:
        """Return the rank of a module's factors."""
        return int(_matched(self.rank_pattern, module, self.r))

    def scale_of(self, module: str) -> float:
        """Return what the product of a module's factors is multiplied by."""
        rank = self.rank_of(module)
        return _matched(self.alpha_pattern, module, self.lora_alpha) / (math.sqrt(rank) if self.use_rslora else rank)


def _names(stated: Mapping[str, Any], name: str, where: str) -> tuple[str, ...]:
    names = stated.get(name) or ()
    if not isinstance(names, (list, tuple)) or not all(isinstance(one, str) for one in names):
        raise refusal(where, f"{name} must be a list of names, got {names!r:.60}")
    return tuple(names)


def _token_indices(stated: Any, where: str) -> Mapping[str, tuple[int, ...]]:
    by_module = stated if isinstance(stated, Mapping) else {"": stated}
    for name, tokens in by_module.items():
        if not isinstance(tokens, (list, tuple)) or not all(type(token) is int for token in tokens):
            raise refusal(where, f"trainable_token_indices must be integers, got {tokens!r:.60} for {name!r:.60}")
    return {name: tuple(tokens) for name, tokens in by_module.items()}


def _matched(pattern: Mapping[str, float], module: str, otherwise: float) -> float:
    """Return the value of the first key that matches the end of a name, from a dot on or whole."""
    found = (
        value
        for key, value in pattern.items()
        if regex.match(rf"(.*\.)?({key})$", module, timeout=_MOST_SECONDS) is not None
    )
    return next(found, otherwise)


def _pattern(stated: Mapping[str, Any], name: str, where: str) -> Mapping[str, Any]:
    pattern = stated.get(name) or {}
    if not isinstance(pattern, Mapping):
        raise refusal(where, f"{name} must be an object, got {pattern!r:.60}")
    for key, value in pattern.items():
        _check_number(f"{name}[{key!r:.60}]", value, where, is_rank=name == "rank_pattern")
        try:
            regex.compile(key)
        except regex.error as error:
            raise refusal(where, f"{name}: {key!r:.60} is no regular expression ({error})") from error
    return pattern


def _check_number(name: str, value: Any, where: str, *, is_rank: bool) -> None:
    is_number = not isinstance(value, bool) and isinstance(value, (int, float)) and 0 < value <= sys.float_info.max
    if not is_number or (is_rank and value % 1):
        raise refusal(where, f"{name} must be {'an integer' if is_rank else 'a number'} above 0, got {value!r:.60}")
