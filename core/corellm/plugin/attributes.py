"""An adapter's attributes: their checks at load, and the hooks whose defaults they are.

Knows `AdapterAttributes` of `hookspecs`; does not know versions, nor what the hooks are for.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from corellm.errors import ContractError
from corellm.hookspecs import AdapterAttributes, hookimpl
from corellm.plugin.hookset import near

if TYPE_CHECKING:
    from corellm.multimodal.fields import MultiModalFieldConfig
    from corellm.plugin.hook_callers import HookCallers

_NEARLY = 0.8
"""How like an attribute's name another one must be to be taken for a misspelt one."""


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_limit(value: object) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and value > 0)


def _is_anything(value: object) -> bool:
    return True  # `split_items` checks the configurations with the tensors


def _maps_text_to(is_right: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, Mapping) and all(_is_text(k) and is_right(v) for k, v in value.items())


_FORMS: Mapping[str, tuple[Callable[[object], bool], str, str]] = {
    "supported_mm_limits": (
        _maps_text_to(_is_limit),
        '{modality: most items per prompt, or None for any number}, such as {"image": None}',
        "get_supported_mm_limits",
    ),
    "placeholders": (
        _maps_text_to(_is_text),
        '{modality: prompt text that stands for an item}, such as {"image": "<image>"}',
        "get_placeholder_str",
    ),
    "mm_fields_config": (
        _maps_text_to(_is_anything),
        '{tensor name: how it divides into items}, such as {"pixel_values": MultiModalFieldConfig.batched("image")}',
        "get_mm_fields_config",
    ),
    "refuse_embeddings": (
        lambda value: _is_text(value) and value != "",
        'the reason as text, such as "they do not have the grid of patches"',
        "refuse_embeddings",
    ),
}
"""`{attribute: (whether a value is right, what it must be, the hook for values that depend on the checkpoint)}`."""


def attribute(adapter: object, name: str) -> Any:
    """Return an attribute of an adapter or its class; None if it has none, or a method of that name."""
    value = inspect.getattr_static(adapter, name, None)
    return None if inspect.isroutine(value) or isinstance(value, (staticmethod, classmethod)) else value


def check_values(adapter: object, where: str) -> None:
    """Check the attributes that an adapter or its class has.

    Raises:
        ContractError: one has the wrong form, or two have different modalities.
    """
    for name, (is_right, form, hook) in _FORMS.items():
        value = attribute(adapter, name)
        if value is not None and not is_right(value):
            raise ContractError(
                f"{where}.{name} must be {form}; got {value!r:.80}. Where it depends on the checkpoint, implement the "
                f"hook {hook} instead"
            )
    limits, placeholders = attribute(adapter, "supported_mm_limits"), attribute(adapter, "placeholders")
    if limits is None or placeholders is None:
        return
    for modality in placeholders.keys() - limits.keys():
        raise ContractError(
            f"{where}.placeholders has {modality!r}, which supported_mm_limits has not{near(modality, limits)}"
        )


def check_names(adapter: type[Any], hooks: Collection[str], where: str) -> None:
    """Check that no attribute of an adapter's class is a misspelt one, or has the name of a hook.

    Raises:
        ContractError: one is; says which was meant.
    """
    for name, value in inspect.getmembers_static(adapter):
        if name.startswith("_") or name in _FORMS or value is None or attribute(adapter, name) is None:
            continue
        meant = near(name, AdapterAttributes.__annotations__, cutoff=_NEARLY)
        if name in hooks:
            raise ContractError(f"{where}.{name} is a hook, which must be a method with @hookimpl{meant}")
        if meant and name not in AdapterAttributes.__annotations__:
            raise ContractError(
                f"{where}.{name} is no attribute that corellm reads{meant} One of your own may begin with an underscore"
            )


def ways_to_give(name: str, hooks: Collection[str]) -> str:
    """Say how an adapter gives a required attribute, or a hook instead."""
    return (
        f"{name}: give it as an attribute, {_FORMS[name][1]}; or, where it depends on the checkpoint, implement the "
        f"hook {' or '.join(hooks)}"
    )


class AttributeDefaults:
    """The defaults of the hooks that attributes stand in for.

    Args:
        adapter: of the model.
        hooks: the model's hook callers.
    """

    def __init__(self, adapter: object, hooks: HookCallers) -> None:
        self._adapter, self._hooks = adapter, hooks

    @hookimpl(trylast=True)
    def get_supported_mm_limits(self) -> Mapping[str, int | None] | None:
        """Return the attribute."""
        limits: Mapping[str, int | None] | None = attribute(self._adapter, "supported_mm_limits")
        return limits

    @hookimpl(trylast=True)
    def get_placeholder_str(self, modality: str) -> str | None:
        """Return the attribute's text for the modality; None if it has none."""
        placeholders: Mapping[str, str] = attribute(self._adapter, "placeholders") or {}
        return placeholders.get(modality)

    @hookimpl(trylast=True)
    def get_dummy_text(self, mm_counts: Mapping[str, int]) -> str:
        """Return the placeholders of so many items.

        Raises:
            ContractError: a modality has none.
        """
        text = ""
        for modality, count in mm_counts.items():
            for index in range(count):
                placeholder = self._hooks.get_placeholder_str(modality=modality, index=index)
                if placeholder is None:
                    raise ContractError(
                        f"get_placeholder_str returned None for {modality!r}, which the model takes; give its text, "
                        f"empty if it has no placeholder"
                    )
                text += placeholder
        return text

    @hookimpl(trylast=True)
    def get_mm_fields_config(self) -> Mapping[str, MultiModalFieldConfig] | None:
        """Return the attribute."""
        fields: Mapping[str, MultiModalFieldConfig] | None = attribute(self._adapter, "mm_fields_config")
        return fields

    @hookimpl(trylast=True)
    def refuse_embeddings(self) -> str | None:
        """Return the attribute."""
        reason: str | None = attribute(self._adapter, "refuse_embeddings")
        return reason
