"""How a later version of the contract understands adapters of this one: renamed, added and removed hooks and arguments.

The later version is a module made of this one's specifications.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Generator
from pathlib import Path
from types import ModuleType
from typing import Any

import pluggy
import pytest

from corellm import hookspecs
from corellm.errors import ContractError
from corellm.hookspecs import ModelContext, hookimpl
from corellm.plugin.contract import CONTRACT, Contract
from corellm.plugin.manager import build_manager, call_static_hook
from corellm_llava import Llava

hookspec = pluggy.HookspecMarker("corellm")
OLD, NEW = "get_dummy_text", "get_sample_text"
WARNED = rf"toy: .*{OLD}: {NEW} .*contract 2; .*contract 3 "


@hookspec(firstresult=True)
def get_sample_text(mm_counts: dict[str, int], language: str) -> None:
    """What version 2 has instead of `get_dummy_text`: another name and one argument more."""


def later(version: int = 2, oldest: int = 1, **changes: Any) -> Contract:
    """The contract of a later corellm, which renames `get_dummy_text`; None among the changes removes a name."""
    specs = ModuleType("later_hookspecs")
    vars(specs).update(vars(hookspecs))
    changes = {
        "CONTRACT_VERSION": version,
        "OLDEST_CONTRACT_VERSION": oldest,
        "RENAMED_HOOKS": {OLD: NEW},
        "REQUIRED_ATTRIBUTES": {**hookspecs.REQUIRED_ATTRIBUTES, "placeholders": ("get_placeholder_str", NEW)},
        OLD: None,
        NEW: get_sample_text,
        **changes,
    }
    for name, value in changes.items():
        if value is None:
            vars(specs).pop(name, None)
        else:
            setattr(specs, name, value)
    return Contract(specs)


class Toy:
    """An adapter of version 1: every required hook and no more."""

    contract: Any = 1

    def __init__(self, context: ModelContext) -> None:
        self.context = context

    @hookimpl
    def get_supported_mm_limits(self) -> dict[str, None]:
        return {"image": None}

    @hookimpl
    def get_dummy_text(self, mm_counts: dict[str, int]) -> str:
        return "<image>" * mm_counts["image"]

    @hookimpl
    def get_dummy_mm_data(self) -> dict[str, Any]:
        return {}

    @hookimpl
    def get_mm_fields_config(self) -> dict[str, Any]:
        return {}

    @hookimpl
    def get_prompt_updates(self) -> list[Any]:
        return []

    @hookimpl
    def get_multimodal_embeddings(self) -> list[Any]:
        return []


def context() -> ModelContext:
    """A context for adapters that do not look at it."""
    return ModelContext(Path("."), None, None, None, None)  # type: ignore[arg-type]


def managed(adapter: type[Any], contract: Contract, **options: Any) -> pluggy.PluginManager:
    """The adapter, checked and registered."""
    contract.check_adapter(adapter, "toy")
    return build_manager(adapter, context(), distribution="toy", contract=contract, **options)


def test_the_tables_of_this_version_agree() -> None:
    """The policy: one version of deprecation; new names are hooks, old ones are not."""
    assert hookspecs.CONTRACT_VERSION - hookspecs.OLDEST_CONTRACT_VERSION in (0, 1)
    assert set(hookspecs.RENAMED_HOOKS.values()) <= CONTRACT.hooks
    assert not hookspecs.RENAMED_HOOKS.keys() & CONTRACT.hooks
    assert not hookspecs.RENAMED_HOOKS or hookspecs.OLDEST_CONTRACT_VERSION < hookspecs.CONTRACT_VERSION


def test_a_renamed_hook_is_called_under_its_old_name() -> None:
    """The core calls the new name with the new argument; the old method is called. A warning says what to do."""
    with pytest.warns(FutureWarning, match=WARNED + r".*\. Upgrade") as warned:
        manager = managed(Toy, later())
    assert manager.hook.get_sample_text(mm_counts={"image": 2}, language="en") == "<image><image>"
    assert len(warned) == 1
    assert warned[0].filename == __file__


def test_a_shipped_adapter_loads() -> None:
    """LLaVA's, unchanged."""

    @hookspec(firstresult=True)
    def get_largest_mm_data(mm_counts: dict[str, int]) -> None:
        """Version 2's `get_dummy_mm_data`."""

    contract = later(
        RENAMED_HOOKS={"get_dummy_mm_data": "get_largest_mm_data"},
        REQUIRED_HOOKS=("get_largest_mm_data", "get_prompt_updates", "get_multimodal_embeddings"),
        REQUIRED_ATTRIBUTES=hookspecs.REQUIRED_ATTRIBUTES,
        get_dummy_mm_data=None,
        get_sample_text=None,
        get_dummy_text=hookspecs.get_dummy_text,
        get_largest_mm_data=get_largest_mm_data,
    )
    with pytest.warns(FutureWarning, match=r"corellm-llava: Llava.get_dummy_mm_data: get_largest_mm_data "):
        contract.check_adapter(Llava, "corellm-llava")
    with pytest.raises(ContractError, match=r"required .*get_largest_mm_data"):
        contract.check_adapter(type("Lacking", (Llava,), {"get_dummy_mm_data": None}), "toy")


def test_the_warning_comes_once_and_is_shown() -> None:
    """Python's own filters show it, once for any number of loads."""
    contract = later()
    with warnings.catch_warnings(record=True) as warned:
        warnings.resetwarnings()
        warnings.simplefilter("ignore", DeprecationWarning)  # as Python starts
        for _ in range(3):
            managed(Toy, contract)
            warnings.filterwarnings("ignore", message="another")  # forgets what Python has warned of
    assert [warning.category for warning in warned] == [FutureWarning]


def test_where_warnings_are_errors_every_load_fails() -> None:
    """The second load fails, too."""
    contract = later()
    for _ in range(2):
        with pytest.raises(FutureWarning, match=WARNED):
            contract.check_adapter(Toy, "toy")


def test_the_next_version_refuses() -> None:
    """One line, which says what to upgrade."""
    with pytest.raises(ContractError, match=r"^toy .* 1, .* 2 to 3; upgrade toy$"):
        later(version=3, oldest=2, RENAMED_HOOKS={}).check_adapter(Toy, "toy")


def test_an_adapter_of_the_new_version() -> None:
    """The new name and argument work without a warning; the old name is an error that says the new one."""

    class New(Toy):
        contract = 2
        get_dummy_text = None  # type: ignore[assignment]

        @hookimpl
        def get_sample_text(self, language: str) -> str:
            return language

    assert managed(New, later()).hook.get_sample_text(mm_counts={}, language="en") == "en"
    old = type("Old", (Toy,), {"contract": 2})
    with pytest.raises(ContractError, match=rf"Old.{OLD}: contract 2 .*{NEW}"):
        later().check_adapter(old, "toy")


def test_an_adapter_of_both_versions() -> None:
    """It has the old name, which both versions call; both names at once are an error."""
    both = type("Both", (Toy,), {"contract": range(1, 3)})
    with pytest.warns(FutureWarning, match=WARNED):
        manager = managed(both, later())
    assert manager.hook.get_sample_text(mm_counts={"image": 1}, language="en") == "<image>"

    class Twice(both):  # type: ignore[misc, valid-type]
        @hookimpl
        def get_sample_text(self) -> str:
            return ""

    with pytest.raises(ContractError, match=f"Twice .*{OLD} and {NEW}"):
        later().check_adapter(Twice, "toy")


def test_an_old_name_without_hookimpl() -> None:
    """Is an error, as for a new one."""

    class Unmarked(Toy):
        def get_dummy_text(self) -> str:  # type: ignore[override]
            return ""

    with pytest.raises(ContractError, match=rf"Unmarked.{OLD} .*@hookimpl"):
        later().check_adapter(Unmarked, "toy")


def test_names_that_were_free_in_their_version() -> None:
    """An old adapter's own method may have the new name, a new one's the old name: it is not called."""

    class Old(Toy):
        def get_sample_text(self) -> str:
            return "mine"

    with pytest.warns(FutureWarning, match=WARNED):
        manager = managed(Old, later())
    assert manager.hook.get_sample_text(mm_counts={"image": 1}, language="en") == "<image>"

    class New(Toy):
        contract = 2

        @hookimpl
        def get_sample_text(self) -> str:
            return "right"

        def get_dummy_text(self) -> str:  # type: ignore[override]
            return "mine"

    assert managed(New, later()).hook.get_sample_text(mm_counts={}, language="en") == "right"


def test_a_required_hook_is_still_required() -> None:
    """Or an attribute instead; the error has the new name."""
    lacking = type("Lacking", (Toy,), {OLD: None})
    with pytest.raises(ContractError, match=rf"lacks placeholders: .*get_placeholder_str or {NEW}"):
        later().check_adapter(lacking, "toy")


def test_arguments_are_checked_against_the_new_hook() -> None:
    """One that it does not have is refused by name, under the old name of the hook, too."""

    class Wrong(Toy):
        @hookimpl
        def get_dummy_text(self, counts: int) -> str:  # type: ignore[override]
            return ""

    with pytest.raises(ContractError, match=rf"{OLD} .*'counts'.*mm_counts, language"):
        later().check_adapter(Wrong, "toy")


def test_a_renamed_static_hook() -> None:
    """It is called on the class, by the new name; a plain method of the old name is refused, too."""

    @hookspec(firstresult=True)
    def register_configuration() -> None:
        """Version 2's `register_config`."""

    contract = later(
        RENAMED_HOOKS={"register_config": "register_configuration"},
        STATIC_HOOKS=("register_configuration", "register_tokenizer"),
        REQUIRED_ATTRIBUTES=hookspecs.REQUIRED_ATTRIBUTES,
        register_config=None,
        register_configuration=register_configuration,
        get_sample_text=None,
        get_dummy_text=hookspecs.get_dummy_text,
    )

    class Static(Toy):
        @staticmethod
        @hookimpl
        def register_config() -> Callable[..., Any]:
            return str.upper

    with pytest.warns(FutureWarning, match=r"Static.register_config: register_configuration "):
        managed(Static, contract)
    assert call_static_hook(Static, "register_configuration", "toy", contract=contract) is str.upper
    assert call_static_hook(Toy, "register_configuration", "toy", contract=contract) is None

    class Plain(Toy):
        @hookimpl
        def register_config(self) -> Callable[..., Any]:
            return str.upper

    with pytest.raises(ContractError, match=r"Plain.register_config .*@staticmethod"):
        contract.check_adapter(Plain, "toy")


def test_an_extension_may_wrap_by_the_old_name() -> None:
    """It wraps the hook of the new name, with a warning; its options are kept."""

    class Loud:
        @hookimpl(wrapper=True)
        def get_dummy_text(self) -> Generator[None, str, str]:
            return (yield) + "!"

    class Default:
        @hookimpl(trylast=True)
        def get_sample_text(self) -> str:
            raise AssertionError("the adapter goes first")

    class Extension:
        @hookimpl
        def wrap_adapter(self) -> object:
            return Loud()

    extensions = pluggy.PluginManager("corellm")
    extensions.register(Extension())
    with pytest.warns(FutureWarning) as warned:
        manager = managed(Toy, later(), extensions=extensions, defaults=[Default()])
    assert re.search(rf"extension .*Loud.{OLD}: {NEW} ", str(warned[-1].message))
    assert manager.hook.get_sample_text(mm_counts={"image": 1}, language="en") == "<image>!"


def test_what_the_next_version_removes_is_warned_of() -> None:
    """One warning for a hook and one for an argument; none for the core's own defaults."""

    @hookspec(
        firstresult=True,
        warn_on_impl_args={"mm_counts": FutureWarning("contract 3 gives mm_sizes instead")},
    )
    def get_dummy_text(mm_counts: dict[str, int], mm_sizes: dict[str, int]) -> None:
        """With an argument beside the deprecated one."""

    @hookspec(firstresult=True, warn_on_impl=FutureWarning("contract 3 will not call this"))
    def compute_logits(hidden_states: Any) -> None:
        """A deprecated hook."""

    class Logits(Toy):
        @hookimpl
        def compute_logits(self) -> None:
            return None

    class Default:
        @hookimpl(trylast=True)
        def compute_logits(self) -> str:
            return "default"

    contract = later(
        RENAMED_HOOKS={}, REQUIRED_ATTRIBUTES=hookspecs.REQUIRED_ATTRIBUTES, get_sample_text=None,
        get_dummy_text=get_dummy_text, compute_logits=compute_logits,
    )  # fmt: skip
    with pytest.warns(FutureWarning) as warned:
        manager = managed(Logits, contract, defaults=[Default()])
    assert [str(warning.message).partition("<locals>.")[2] for warning in warned] == [
        "Logits.compute_logits: contract 3 will not call this",
        "Logits.get_dummy_text, argument 'mm_counts': contract 3 gives mm_sizes instead",
    ]
    assert {warning.filename for warning in warned} == {__file__}
    assert manager.hook.compute_logits(hidden_states=None) == "default"
    assert manager.hook.get_dummy_text(mm_counts={"image": 1}, mm_sizes={}) == "<image>"
