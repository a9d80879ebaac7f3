"""Processor arguments by modality: the request's over the operator's, each modality's own only.

An item is processed with these arguments alone and its hash covers them: an argument that only videos take neither
reaches an image nor changes its hash. Knows names, no meanings.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from corellm.config import KWARGS_GROUPS, kwargs_for, suggestion
from corellm.errors import ContractError, ProcessorKwargsError
from corellm.plugin.hook_callers import HookCallers


class KwargsByModality:
    """Divides `mm_processor_kwargs` among the modalities of one model.

    Args:
        operators: the arguments given at start.
        names: `{modality of the model: the arguments its items depend on, or None where that is not known}`.

    Raises:
        ProcessorKwargsError: the operator's arguments are not what `resolve` takes.
    """

    def __init__(self, operators: Mapping[str, Any], names: Mapping[str, frozenset[str] | None]) -> None:
        self._names = names
        self._operators = self._divide(operators)

    def resolve(self, given: Mapping[str, Any] | None) -> dict[str, dict[str, Any]]:
        """`{modality: its arguments}`, the request's laid over the operator's one by one.

        An argument that only other modalities know is left out. One that no modality knows stays, for the processor to
        refuse.

        Args:
            given: the request's: arguments for all modalities, and groups (`images_kwargs`, `videos_kwargs`,
                `audio_kwargs`) of arguments for one.

        Raises:
            ProcessorKwargsError: a group is no dict, is of a modality that the model does not take, or has an argument
                that its modality does not know or that is given for all as well.
        """
        own = self._divide(given) if given else {}
        return {modality: kwargs | own.get(modality, {}) for modality, kwargs in self._operators.items()}

    def _divide(self, given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        for modality, group in KWARGS_GROUPS.items():
            if group in given:
                self._check_group(modality, group, given)
        return {
            modality: {
                name: value for name, value in kwargs_for(modality, given).items() if self._concerns(name, modality)
            }
            for modality in self._names
        }

    def _concerns(self, name: str, modality: str) -> bool:
        own = self._names[modality]
        return own is None or name in own or not any(name in names for names in self._names.values() if names)

    def _check_group(self, modality: str, group: str, given: Mapping[str, Any]) -> None:
        arguments = given[group]
        if not isinstance(arguments, Mapping) or not all(isinstance(name, str) for name in arguments):
            raise ProcessorKwargsError(
                f"mm_processor_kwargs: {group} must be a dict of arguments, got {arguments!r:.100}", modality=modality
            )
        if arguments and modality not in self._names:
            raise ProcessorKwargsError(
                f"mm_processor_kwargs: {group}: this model takes no {modality}; it takes {', '.join(self._names)}",
                modality=modality,
            )
        known = self._names.get(modality)
        unknown = sorted(arguments.keys() - known) if known is not None else []
        if unknown:
            raise ProcessorKwargsError(
                f"mm_processor_kwargs: {group}: {', '.join(map(repr, unknown))} is no argument for {modality} items"
                + suggestion(unknown[0], known or ()),
                modality=modality, expected=sorted(known or ()), got=unknown,
            )  # fmt: skip
        if twice := sorted(arguments.keys() & given.keys()):
            raise ProcessorKwargsError(
                f"mm_processor_kwargs: {', '.join(map(repr, twice))} is given for all items and in {group}; "
                "give it once",
                modality=modality, got=twice,
            )  # fmt: skip


def kwargs_names(hooks: HookCallers, modality: str) -> frozenset[str] | None:
    """Names of the arguments that items of a modality depend on, by `get_mm_kwargs_names`; None where not known.

    Raises:
        ContractError: the hook returned no collection of strings.
    """
    names = hooks.get_mm_kwargs_names(modality=modality)
    if names is None:
        return None
    fits = isinstance(names, Collection) and not isinstance(names, str)
    if not fits or not all(isinstance(name, str) for name in names):
        raise ContractError(f"get_mm_kwargs_names returned {names!r:.80}; it must return names of arguments, or None")
    return frozenset(names)
