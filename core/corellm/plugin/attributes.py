"""Checks an adapter's attributes at load, and returns them from the hooks that it does not implement.

Knows `AdapterAttributes` of `hookspecs`; does not know versions, nor what the hooks are for.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Set
from typing import TYPE_CHECKING, Any

from corellm.errors import ContractError
from corellm.hookspecs import REQUIRED_ATTRIBUTES, AdapterAttributes, hookimpl
from corellm.plugin.hookset import did_you_mean

if TYPE_CHECKING:
    from corellm.plugin.hook_callers import HookCallers

_NEARLY = 0.8
"""How like the name of an attribute another name must be to count as misspelt."""


def _maps_text_to(is_right: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, Mapping) and all(isinstance(k, str) and is_right(value[k]) for k in value)


def _is_limit(value: object) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and value > 0)


def _is_name(value: object) -> bool:
    return isinstance(value, str) and value != ""


_FORMS: Mapping[str, tuple[Callable[[object], bool], str]] = {
    "supported_mm_limits": (
        _maps_text_to(_is_limit),
        '{modality: most items per prompt, or None for any number}, such as {"image": None}',
    ),
    "placeholders": (
        _maps_text_to(lambda value: isinstance(value, str)),
        '{modality: prompt text that stands for an item}, such as {"image": "<image>"}',
    ),
    "mm_fields_config": (
        _maps_text_to(lambda _: True),  # `split_items` checks them with the tensors
        '{tensor name: how it divides into items}, such as {"pixel_values": MultiModalFieldConfig.batched("image")}',
    ),
    "refuse_embeddings": (
        _is_name,
        'the reason as text, such as "they do not have the grid of patches"',
    ),
    "tool_parser": (_is_name, 'the name of a form of tool calls, such as "hermes"'),
    "reasoning_parser": (_is_name, 'the name of a form of reasoning, such as "think"'),
}
"""`{attribute: (whether a value is right, what it must be)}`."""
WITHOUT_HOOK = frozenset({"tool_parser", "reasoning_parser"})
"""Attributes that are the same for all checkpoints of any family, so that no hook takes their place."""


def attribute(adapter: object, name: str) -> Any:
    """Return an attribute of an adapter or its class; None if it has none, or a method of that name."""
    value = inspect.getattr_static(adapter, name, None)
    return None if inspect.isroutine(value) or isinstance(value, (staticmethod, classmethod)) else value


def ways_to_give(name: str, hooks: Collection[str]) -> str:
    """Say how an adapter gives an attribute, or a hook instead."""
    if name in WITHOUT_HOOK:
        return f"{name}: give it as an attribute, {_FORMS[name][1]}"
    return (
        f"{name}: give it as an attribute, {_FORMS[name][1]}; or, where it depends on the checkpoint, implement the "
        f"hook {' or '.join(hooks)}"
    )


def check_values(adapter: object, where: str) -> None:
    """Check the attributes that an adapter or its class has.

    Raises:
        ContractError: one has the wrong form, or two have different modalities.
    """
    for name, (is_right, _) in _FORMS.items():
        value = attribute(adapter, name)
        if value is not None and not is_right(value):
            ways = ways_to_give(name, REQUIRED_ATTRIBUTES.get(name, (name,)))
            raise ContractError(f"{where} has {value!r:.80} as {ways}")
    limits, placeholders = attribute(adapter, "supported_mm_limits"), attribute(adapter, "placeholders")
    for modality in (placeholders or {}).keys() - limits.keys() if limits is not None else ():
        raise ContractError(
            f"{where}.placeholders has {modality!r}, which supported_mm_limits has not{did_you_mean(modality, limits)}"
        )


def check_names(adapter: type[Any], hooks: Collection[str], implemented: Set[str], where: str) -> None:
    """Check that no attribute of an adapter's class is a misspelt one, or has the name of a hook.

    What an adapter gives already is not misspelt: one written before there were attributes has hooks instead, and may
    have a name of its own that is like an attribute's.

    Args:
        adapter: the class.
        hooks: all there are.
        implemented: those that it implements.
        where: for messages.

    Raises:
        ContractError: one is; says which was meant.
    """
    lacking = [
        name
        for name in AdapterAttributes.__annotations__
        if attribute(adapter, name) is None and not implemented & {*REQUIRED_ATTRIBUTES.get(name, (name,))}
    ]
    for name, value in inspect.getmembers_static(adapter):
        if name.startswith("_") or name in _FORMS or value is None or attribute(adapter, name) is None:
            continue
        meant = did_you_mean(name, lacking, cutoff=_NEARLY)
        if name in hooks:
            raise ContractError(f"{where}.{name} is a hook, which must be a method with @hookimpl{meant}")
        if meant and name not in AdapterAttributes.__annotations__:
            raise ContractError(
                f"{where}.{name} is no attribute that corellm reads{meant} One of your own may begin with an underscore"
            )


class AttributeDefaults:
    """The default of each hook that an attribute can replace: the attribute's value.

    Args:
        adapter: of the model.
        hooks: the model's hook callers.
    """

    def __init__(self, adapter: object, hooks: HookCallers) -> None:
        self._adapter, self._hooks = adapter, hooks

    @hookimpl(trylast=True)
    def get_supported_mm_limits(self) -> Any:
        """Return the attribute."""
        return attribute(self._adapter, "supported_mm_limits")

    @hookimpl(trylast=True)
    def get_mm_fields_config(self) -> Any:
        """Return the attribute."""
        return attribute(self._adapter, "mm_fields_config")

    @hookimpl(trylast=True)
    def refuse_embeddings(self) -> Any:
        """Return the attribute."""
        return attribute(self._adapter, "refuse_embeddings")

    @hookimpl(trylast=True)
    def get_placeholder_str(self, modality: str) -> str | None:
        """Return the attribute's text for the modality; None if it has none."""
        placeholders: Mapping[str, str] = attribute(self._adapter, "placeholders") or {}
        return placeholders.get(modality)

    @hookimpl(trylast=True)
    def get_dummy_text(self, mm_counts: Mapping[str, int]) -> str:
        """Return the placeholder of a first item once for each item."""
        return "".join(self._placeholder(modality) * count for modality, count in mm_counts.items())

    def _placeholder(self, modality: str) -> str:
        placeholder = self._hooks.get_placeholder_str(modality=modality, index=0)
        if placeholder is None:
            raise ContractError(
                f"get_placeholder_str returned None for {modality!r}, which the model takes; it must return text, "
                f"empty if the prompt has no placeholder"
            )
        return placeholder
