"""What an adapter changes of each module: which tensors of its file are for what, checked against a model.

Knows names and shapes, as PEFT writes them; knows no values and no slots.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from corellm_lora.adapter_config import AdapterConfig
from corellm_lora.errors import refusal
from corellm_lora.terms import Terms

Shapes = Mapping[str, Sequence[int]]
_PARTS = {
    r"lora_A\.weight": "a", r"lora_B\.weight": "b", r"lora_B\.bias": "b_bias",
    r"lora_embedding_A": "a", r"lora_embedding_B": "b",
    r"lora_magnitude_vector(\.weight)?": "magnitude",
    r"token_adapter\.trainable_tokens_delta": "tokens",
}  # fmt: skip
"""Parts by how a tensor's name goes on behind its module's."""
_KEY = re.compile(
    r"(base_model\.model\.)?(?P<module>.+?)\.((?P<wrapper>base_layer|modules_to_save)\.)?"
    rf"({'|'.join(f'(?P<part{i}>{pattern})' for i, pattern in enumerate(_PARTS))}|(?P<own>[^.]+))"
)
OWN = "own."
"""Before the name of a parameter of the module itself, as a part."""


class Change(NamedTuple):
    """Where in the file the tensors for a module are."""

    keys: Mapping[str, str]
    """Keys by part: `a` and `b` (factors), `b_bias`, `magnitude`, `tokens`, or `own.` and the module's parameter."""
    scale: float = 1.0
    """What the product of the factors is multiplied by."""
    token_ids: tuple[int, ...] = ()
    """Tokens whose embeddings `tokens` are."""

    def has(self, *parts: str) -> bool:
        """Whether it has one of these parts."""
        return any(part in self.keys for part in parts)

    @property
    def is_whole(self) -> bool:
        """Whether it replaces parameters of the module."""
        return any(part.startswith(OWN) for part in self.keys)


@dataclass(frozen=True)
class _Checks:
    """Checks one adapter against a model."""

    name: str
    config: AdapterConfig
    shapes: Shapes
    terms: Terms
    _owners: dict[str, str] = field(default_factory=dict)

    def changes(self) -> Iterator[tuple[str, Change]]:
        """Yield what is changed of each module of the model."""
        found = list(self._modules().items())
        if not found:
            raise refusal(self.name, "its file holds no tensors")
        for module, keys in sorted(found):
            target = self.terms.module(module)
            if target is None:
                raise refusal(self.name, self._unknown(module, keys))
            if target in self._owners:
                raise refusal(self.name, f"{module} and {self._owners[target]} are the same module of this model")
            self._owners[target] = module
            if target not in self.terms.unused:
                yield from self._checked(module, target, keys)
        self._check_complete(found)

    def _modules(self) -> Mapping[str, Mapping[str, str]]:
        """Return the keys of each module, by part."""
        modules: dict[str, dict[str, str]] = {}
        for key in self.shapes:
            found = _KEY.fullmatch(key)
            if found is None:
                raise refusal(self.name, f"{key} is no tensor that PEFT writes; save the adapter again")
            part = next((part for i, part in enumerate(_PARTS.values()) if found[f"part{i}"]), None)
            module = self._weights_of(found["module"], is_inner=found["wrapper"] == "base_layer")
            modules.setdefault(module, {})[part or OWN + found["own"]] = key
        return modules

    def _weights_of(self, module: str, *, is_inner: bool) -> str:
        """Return the name of the experts' weights whose factors a file has under their module's name.

        Those of the second parameter are the module's, and those of the first are inside of that.
        """
        named = self.terms.parameters_of_experts(module)
        found = [name for name in named if self.config.targets_parameter(f"{module}.{name}")]
        if not found or (is_inner and len(found) == 1):
            return module
        return f"{module}.{found[0 if is_inner else -1]}"

    def _ranked(self, module: str) -> str:
        """Return what PEFT calls a module in patterns of ranks and scales."""
        return f"{module}.weight" if self.config.targets_parameter(f"{module}.weight") else module

    def _checked(self, module: str, target: str, keys: Mapping[str, str]) -> Iterator[tuple[str, Change]]:
        tokens = self.config.tokens_of(module) if "tokens" in keys else ()
        change = Change(keys, self.config.scale_of(self._ranked(module)) if "a" in keys else 1.0, tokens)
        for part, key in keys.items():
            want, shape = self._wanted(module, target, part, change), self.shapes[key]
            if list(_as_rows(shape) if self.terms.linear(target) else shape) != want:
                raise refusal(
                    self.name,
                    f"{module}: {_end(module, key)} is {list(self.shapes[key])}, and must be {want} by the adapter's "
                    "configuration and this model; is it an adapter of another model?",
                )
        if ("a" in keys) != ("b" in keys):
            absent = "lora_B" if "a" in keys else "lora_A"
            raise refusal(self.name, f"{module} has no {absent}.weight; save the adapter again")
        if "a" in keys:
            self._check_factors(module, target, change)
        yield target, change
        if target in self.terms.table and "tokens" in keys and self.terms.tied:
            (output,) = self.terms.output or (None,)
            if output is not None and self.config.tokens_of(output) in ((), tokens):
                yield output, Change({"tokens": keys["tokens"]}, token_ids=tokens)

    def _check_factors(self, module: str, target: str, change: Change) -> None:
        if (rank := self.config.rank_of(self._ranked(module))) > self.terms.max_rank:
            raise refusal(
                self.name,
                f"{module} has rank {rank}, and this model takes up to {self.terms.max_rank}; raise max_lora_rank",
            )
        for part, stated, field_name in (
            ("magnitude", self.config.use_dora, "use_dora"),
            ("b_bias", self.config.lora_bias, "lora_bias"),
        ):
            if change.has(part) != stated:
                has = "has" if change.has(part) else "lacks"
                raise refusal(
                    self.name, f"{module} {has} what goes with {field_name}, which is {stated}; save the adapter again"
                )

    def _wanted(self, module: str, target: str, part: str, change: Change) -> list[int]:
        """Return the shape that a part must have.

        Raises:
            InvalidParameterError: the module cannot have it.
        """
        rank, wanted = self.config.rank_of(self._ranked(module)), {}
        if (experts := self.terms.expert_weights(target)) is not None:
            first, end = experts.outputs
            all_ranks = rank * experts.num_experts
            wanted = {"a": [all_ranks, experts.in_features], "b": [end - first, all_ranks]}
        elif (size := self.terms.routers.get(target)) is not None:
            wanted = {"a": [rank, size[0]], "b": [size[1], rank]}
        elif (size := self.terms.linear(target)) is not None:
            inputs, outputs = size
            is_transposed = target in self.terms.transposed
            if is_transposed and self.config.targets_parameter(f"{module}.weight"):
                raise refusal(
                    self.name,
                    f"target_parameters: the weight of {module} has a row for each input; train it with target_modules",
                )
            wanted = {
                "a": [rank, inputs], "b": [outputs, rank], "b_bias": [outputs], "magnitude": [outputs],
                f"{OWN}weight": [inputs, outputs] if is_transposed else [outputs, inputs], f"{OWN}bias": [outputs],
            }  # fmt: skip
            if target in self.terms.output:
                wanted["tokens"] = [len(change.token_ids), inputs]
        elif target in self.terms.table:
            number, width = self.terms.table[target]
            wanted = {
                "a": [rank, number], "b": [width, rank], f"{OWN}weight": [number, width],
                "tokens": [len(change.token_ids), width],
            }  # fmt: skip
            if not all(0 <= token < number for token in change.token_ids):
                raise refusal(self.name, f"trainable_token_indices: this model has tokens from 0 to {number - 1}")
        else:
            wanted = {OWN + name: list(shape) for name, shape in self.terms.parameters[target].items()}
            if len(weight := wanted.get(f"{OWN}weight", [])) > 3:  # a convolution
                wanted |= {"a": [rank, *weight[1:]], "b": [weight[0], rank, *(1 for _ in weight[2:])]}
        if part not in wanted:
            raise refusal(
                self.name,
                f"{module}: {_end(module, change.keys[part])} cannot be served; merge the adapter into the checkpoint "
                "(peft: merge_and_unload)",
            )
        return wanted[part]

    def _check_complete(self, found: Sequence[tuple[str, Mapping[str, str]]]) -> None:
        """Refuse an adapter whose configuration states what its file has not."""
        whole = [module for module, keys in found if any(part.startswith(OWN) for part in keys)]
        for stated in self.config.modules_to_save:
            if not any(f".{stated}." in f".{module}." for module in whole):
                raise refusal(self.name, f"modules_to_save={stated!r:.60}: its file has no weight of such a module")
        with_factors = [module for module, keys in found if "a" in keys]
        for stated in self.config.target_parameters:
            if not any(f".{name}".endswith(f".{stated}") for one in with_factors for name in (one, f"{one}.weight")):
                raise refusal(self.name, f"target_parameters: its file has no factors of {stated!r:.60}")
        with_tokens = [module for module, keys in found if "tokens" in keys]
        for stated in self.config.token_indices:
            tied = any(f".{stated}".endswith(f".{output}") for output in self.terms.output) and self.terms.tied
            named = any(not stated or f".{module}".endswith(f".{stated}") for module in with_tokens)
            if not named and not (tied and with_tokens):
                where = f" in {stated!r:.60}" if stated else ""
                raise refusal(self.name, f"trainable_token_indices: its file has no embeddings of tokens{where}")

    def _unknown(self, module: str, keys: Mapping[str, str]) -> str:
        what = "linear layer" if "a" in keys else "module"
        return (
            f"{module} is no {what} of this model that can have an adapter; there are "
            f"{', '.join(self.terms.offered())}: train with these, or merge the adapter into the checkpoint"
        )


def _as_rows(shape: Sequence[int]) -> Sequence[int]:
    """Return the shape of a convolution's weight as that of a linear layer; other shapes as they are."""
    return shape if len(shape) < 3 else (shape[0], math.prod(shape[1:]))


def _end(module: str, key: str) -> str:
    return key.rpartition(f"{module}.")[2]


def changes_of(name: str, config: AdapterConfig, shapes: Shapes, terms: Terms) -> dict[str, Change]:
    """Return what an adapter changes of a model, by module.

    Args:
        name: of the adapter, for messages.
        config: what it states.
        shapes: of the tensors in its file.
        terms: of the model.

    Raises:
        InvalidParameterError: it is no adapter for this model.
    """
    found: dict[str, Change] = {}
    try:
        changes = [*_Checks(name, config, shapes, terms).changes()]
    except TimeoutError as error:
        raise refusal(
            name,
            "rank_pattern, alpha_pattern: a key takes too long to be matched with modules' names; write it plainer",
        ) from error
    for target, change in changes:
        before = found.get(target)
        if before is not None:  # tokens of tied embeddings, beside factors of the output layer
            first = before if before.has("a") else change
            change = Change({**before.keys, **change.keys}, first.scale, before.token_ids or change.token_ids)
        found[target] = change
    return found
