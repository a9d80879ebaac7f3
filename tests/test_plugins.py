"""Discovery and the contract's rules about adapters: every mistake has its own error."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pluggy
import pytest

from corellm import hookspecs
from corellm.errors import BrokenPluginError, ContractError, PluginConflictError, PluginNotFoundError
from corellm.hookspecs import (
    REQUIRED_ATTRIBUTES,
    REQUIRED_HOOKS,
    STATIC_HOOKS,
    AdapterAttributes,
    ModelContext,
    hookimpl,
)
from corellm.plugin import adapters, attributes, extension_hooks
from corellm.plugin.adapters import find_adapter, installed_adapters
from corellm.plugin.attributes import AttributeDefaults
from corellm.plugin.contract import CONTRACT
from corellm.plugin.hook_callers import HookCallers
from corellm.plugin.manager import build_manager, call_static_hook

GOOD = """
    from corellm.hookspecs import hookimpl
    class Adapter:
        contract = 1
        def __init__(self, context): self.context = context
        @hookimpl
        def get_supported_mm_limits(self): return {"image": 2}
        @hookimpl
        def get_dummy_text(self, mm_counts): return ""
        @hookimpl
        def get_dummy_mm_data(self, mm_counts): return {}
        @hookimpl
        def get_mm_fields_config(self): return {}
        @hookimpl
        def get_prompt_updates(self): return []
        @hookimpl
        def get_multimodal_embeddings(self, model): return []
"""

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """`install(name, source)`: a distribution whose module has that source, as pip installs it."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(
        name: str,
        source: str,
        *,
        architecture: str = "ToyForCausalLM",
        attribute: str = "Adapter",
        group: str = "corellm.models",
    ) -> None:
        module = name.replace("-", "_")
        (tmp_path / f"{module}.py").write_text(textwrap.dedent(source))
        info = tmp_path / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{group}]\n{architecture} = {module}:{attribute}\n")
        monkeypatch.delitem(sys.modules, module, raising=False)

    return make


def context() -> ModelContext:
    """A context for adapters that do not look at it."""
    return ModelContext(Path("."), None, None, None, None)  # type: ignore[arg-type]


def wrapped_by(wrapper: object) -> pluggy.PluginManager:
    """The manager of one extension, which surrounds every adapter with `wrapper`."""

    class Extension:
        @hookimpl
        def wrap_adapter(self) -> object:
            return wrapper

    manager = pluggy.PluginManager("corellm")
    manager.add_hookspecs(extension_hooks)
    manager.register(Extension())
    return manager


def assert_only_frame_of(file: str, error: Exception) -> None:
    """Check that the traceback in a message has one frame, in that file."""
    assert re.findall(r'File ".*/(.+?)", line', str(error)) == [file]


def test_every_required_hook_is_a_hook() -> None:
    """The lists of required and of static hooks name hooks."""
    assert {*REQUIRED_HOOKS, *STATIC_HOOKS} <= CONTRACT.hooks


STATIC = """
        @staticmethod
        @hookimpl
        def register_config(): return {result}
"""


def test_a_static_hook_is_called_on_the_class(install: Install) -> None:
    """Before there is a context; None for a class without the hook."""
    install("toy", GOOD + STATIC.format(result="str.upper"))
    adapter = find_adapter(["ToyForCausalLM"]).load()
    assert call_static_hook(adapter, "register_config", "toy") is str.upper
    assert call_static_hook(adapter, "register_tokenizer", "toy") is None


def test_a_static_hook_that_raises(install: Install) -> None:
    """The error names the distribution and the hook, with the traceback of the plugin."""
    install("toy", GOOD + STATIC.format(result="1 / 0"))
    adapter = find_adapter(["ToyForCausalLM"]).load()
    with pytest.raises(BrokenPluginError, match=r"toy: Adapter.register_config .*ZeroDivisionError(.|\n)*1 / 0") as e:
        call_static_hook(adapter, "register_config", "toy")
    assert_only_frame_of("toy.py", e.value)


def test_a_static_hook_takes_no_arguments(install: Install) -> None:
    """Not even a first one, which a method would call self."""
    install("toy", GOOD + STATIC.format(result="str").replace("register_config()", "register_config(path)"))
    with pytest.raises(ContractError, match=r"register_config .* 'path'"):
        find_adapter(["ToyForCausalLM"]).load()


def test_a_wrapper_of_a_static_hook_is_refused(install: Install) -> None:
    """It would never be called."""

    class Wrapper:
        @hookimpl(wrapper=True)
        def register_config(self) -> Generator[None, Any, Any]:
            return (yield)

    install("toy", GOOD)
    with pytest.raises(ContractError, match=r"Wrapper.register_config "):
        build_manager(
            find_adapter(["ToyForCausalLM"]).load(), context(), distribution="toy", extensions=wrapped_by(Wrapper())
        )


def test_a_static_hook_that_is_no_static_method(install: Install) -> None:
    """Refused when the adapter is loaded, with what to write."""
    install("toy", GOOD + "        @hookimpl\n        def register_config(self): return str.upper\n")
    with pytest.raises(ContractError, match=r"register_config .*@staticmethod"):
        find_adapter(["ToyForCausalLM"]).load()


def test_llava_is_found_by_entry_point() -> None:
    """The installed plugin is found, and its adapter passes the checks."""
    entry = find_adapter(["LlavaForConditionalGeneration"])
    assert entry.distribution == "corellm-llava"
    assert entry.load().__name__ == "Llava"


def test_a_good_plugin_loads(install: Install) -> None:
    """The toy adapter loads, so that the failures below have the intended cause."""
    install("toy", GOOD)
    manager = build_manager(find_adapter(["ToyForCausalLM"]).load(), context(), distribution="toy")
    assert manager.hook.get_supported_mm_limits() == {"image": 2}


def test_no_plugin_for_a_known_family_names_the_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names what to install and lists what is installed."""
    monkeypatch.setitem(adapters.KNOWN_FAMILIES, "ToyForCausalLM", "corellm-toy")
    with pytest.raises(PluginNotFoundError, match=r"pip install ./plugins/toy.*Installed: .*corellm-llava"):
        find_adapter(["ToyForCausalLM"])


def test_every_known_family_is_served_here() -> None:
    """The advice names the distributions that do serve these architectures."""
    served = {entry.architecture: entry.distribution for entry in installed_adapters()}
    assert {name: served.get(name) for name in adapters.KNOWN_FAMILIES} == adapters.KNOWN_FAMILIES


def test_no_plugin_for_an_unknown_family() -> None:
    """The error points to writing one."""
    words = r"serves UnknownForAnything; "
    with pytest.raises(PluginNotFoundError, match=words):
        find_adapter(["UnknownForAnything"])


def test_a_fallback_is_asked_where_no_distribution_claims_the_name(install: Install) -> None:
    """The core's own takes decoders of any name; a longer end goes before it, a claim of the whole name first."""
    found = find_adapter(["ToyForCausalLM"])
    assert (found.architecture, found.distribution, found.load().__name__) == ("*ForCausalLM", "corellm", "TextModel")
    assert find_adapter(["ToyLMHeadModel"]).architecture == "*LMHeadModel"
    install("toy-ends", GOOD, group="corellm.fallbacks", architecture="yForCausalLM")
    assert find_adapter(["ToyForCausalLM"]).distribution == "toy-ends"
    assert find_adapter(["OtherForCausalLM"]).distribution == "corellm"
    install("toy", GOOD)
    assert find_adapter(["ToyForCausalLM"]).distribution == "toy"


def test_two_fallbacks_for_one_end(install: Install) -> None:
    """Both are named, and how to choose."""
    for name in ("toy-one", "toy-two"):
        install(name, GOOD, group="corellm.fallbacks", architecture="ForGeneration")
    with pytest.raises(PluginConflictError, match=r"toy-one 1.0 and toy-two 1.0 .*ToyForGeneration"):
        find_adapter(["ToyForGeneration"])
    assert find_adapter(["ToyForGeneration"], adapter="toy-two").distribution == "toy-two"


def test_a_known_family_is_not_for_fallbacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fuyu's architecture ends like a text model's: without its plugin the error names what to install."""
    monkeypatch.setattr(adapters, "installed_adapters", lambda architectures=None: [])
    with pytest.raises(PluginNotFoundError, match=r"pip install ./plugins/fuyu.*Installed: \*ForCausalLM \(corellm\)"):
        find_adapter(["FuyuForCausalLM"])


def test_the_generic_adapter_is_named_where_it_would_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only for architectures that it may serve."""
    others = [entry for entry in adapters.installed_fallbacks() if entry.distribution != "corellm-transformers"]
    monkeypatch.setattr(adapters, "installed_fallbacks", lambda: others)
    with pytest.raises(PluginNotFoundError, match=r"install corellm-transformers, .* ./plugins/transformers"):
        find_adapter(["MysteryForConditionalGeneration"])
    with pytest.raises(PluginNotFoundError, match="MysteryModel"):
        find_adapter(["MysteryModel"])


def test_an_adapter_without_modality_needs_no_hooks_of_items(install: Install) -> None:
    """With empty limits nothing else is required; it may still implement hooks, and is checked."""
    text_alone = """
    from corellm.hookspecs import hookimpl

    class Adapter:
        contract = 1
        supported_mm_limits = {}

        def __init__(self, context): self.context = context
    """
    install("toy", text_alone)
    manager = build_manager(find_adapter(["ToyForCausalLM"]).load(), context(), distribution="toy")
    assert manager.hook.get_supported_mm_limits() == {}
    install(
        "other",
        text_alone + "\n        def compute_logits(self, model): return None\n",
        architecture="OtherForCausalLM",
    )
    with pytest.raises(ContractError, match="lacks @hookimpl"):
        find_adapter(["OtherForCausalLM"]).load()


def test_two_claimants(install: Install) -> None:
    """Both are named, and how to choose; choosing works, in any spelling of the name; a wrong choice is refused."""
    install("toy-one", GOOD)
    install("toy-two", GOOD)
    with pytest.raises(PluginConflictError, match=r"toy-one 1.0 and toy-two 1.0 .*--adapter toy-one"):
        find_adapter(["ToyForCausalLM"])
    assert find_adapter(["ToyForCausalLM"], adapter="Toy_Two").distribution == "toy-two"
    with pytest.raises(PluginNotFoundError, match="toy-one, toy-two"):
        find_adapter(["ToyForCausalLM"], adapter="toy-three")


def test_a_broken_plugin_breaks_only_its_own_models(install: Install) -> None:
    """The error has its traceback; other plugins load."""
    install("toy", "import no_such_module_anywhere\n")
    with pytest.raises(BrokenPluginError, match=r"(?s)toy 1.0 .*ModuleNotFoundError.*toy.py.*uninstall") as raised:
        find_adapter(["ToyForCausalLM"]).load()
    assert_only_frame_of("toy.py", raised.value)
    assert find_adapter(["LlavaForConditionalGeneration"]).load()


def test_entry_point_must_name_a_class(install: Install) -> None:
    """An instance or a function is refused by type."""
    install("toy", "Adapter = 3\n")
    with pytest.raises(ContractError, match="not int 3"):
        find_adapter(["ToyForCausalLM"]).load()


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ("contract = 2", r"speaks contract 2, this corellm speaks 1; upgrade corellm"),
        ("contract = 0", r"contract 0, .* 1; upgrade toy"),
        ("contract = range(2, 4)", r"contract 2 to 3"),
        ("contract = 'one'", r"contract version.*got 'one'"),
        ("contract = True", r"contract version.*got True"),
        ("pass", r"contract version.*got None"),
    ],
)
def test_contract_versions_refused(install: Install, declared: str, message: str) -> None:
    """Too new, too old, and undeclared each say what to do."""
    install("toy", GOOD.replace("contract = 1", declared))
    with pytest.raises(ContractError, match=message):
        find_adapter(["ToyForCausalLM"]).load()


def test_a_range_of_contract_versions_is_accepted(install: Install) -> None:
    """An adapter may say that it works with several."""
    install("toy", GOOD.replace("contract = 1", "contract = range(1, 3)"))
    assert find_adapter(["ToyForCausalLM"]).load()


def test_forgotten_hookimpl(install: Install) -> None:
    """A method with a hook's name but without the decorator would never be called."""
    install("toy", GOOD + "        def compute_logits(self, model): return None\n")
    with pytest.raises(ContractError, match=r"Adapter.compute_logits .*@hookimpl"):
        find_adapter(["ToyForCausalLM"]).load()


def without(hook: str) -> str:
    """`GOOD` without a hook."""
    return GOOD.replace(hook, "my_own").replace("@hookimpl\n        def my_own", "def my_own")


def test_missing_required_hook(install: Install) -> None:
    """Named at load, not at the first request."""
    install("toy", without("get_prompt_updates"))
    with pytest.raises(ContractError, match=r"required .*get_prompt_updates"):
        find_adapter(["ToyForCausalLM"]).load()


ATTRIBUTES = {
    "supported_mm_limits": ("get_supported_mm_limits", {"image": None}),
    "placeholders": ("get_dummy_text", {"image": "<image>"}),
    "mm_fields_config": ("get_mm_fields_config", {"pixel_values": None}),
}


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_an_attribute_instead_of_a_hook(install: Install, name: str) -> None:
    """The hook returns the attribute; without either, the error names both ways."""
    hook, value = ATTRIBUTES[name]
    install("toy", without(hook))
    both = rf"toy: Adapter lacks {name}: .*attribute, .*implement the hook .*{hook}"
    with pytest.raises(ContractError, match=both):
        find_adapter(["ToyForCausalLM"]).load()
    install("other", f"{without(hook)}        {name} = {value}\n", architecture="OtherForCausalLM")
    adapter = find_adapter(["OtherForCausalLM"]).load()
    hooks = build_manager(adapter, context(), distribution="other").hook
    found = {
        "supported_mm_limits": lambda: hooks.get_supported_mm_limits(),
        "placeholders": lambda: {"image": hooks.get_placeholder_str(modality="image", index=0)},
        "mm_fields_config": lambda: hooks.get_mm_fields_config(hf_inputs={}, mm_kwargs={}),
    }
    assert found[name]() == value


def test_the_dummy_text_is_made_of_placeholders(install: Install) -> None:
    """Dummy text is the attribute's or a hook's placeholders; a hook that knows no such modality is at fault."""
    install("toy", without("get_dummy_text") + "        placeholders = {'image': '<image>'}\n")
    hooks = build_manager(find_adapter(["ToyForCausalLM"]).load(), context(), distribution="toy").hook
    assert hooks.get_dummy_text(mm_counts={"image": 2}) == "<image><image>"
    assert hooks.get_placeholder_str(modality="smell", index=0) is None

    numbered = "        @hookimpl\n        def get_placeholder_str(self, modality, index):\n"
    numbered += "            return f'<{index}>' if modality == 'image' else None\n"
    install("other", without("get_dummy_text") + numbered, architecture="OtherForCausalLM")
    hooks = build_manager(find_adapter(["OtherForCausalLM"]).load(), context(), distribution="other").hook
    assert hooks.get_dummy_text(mm_counts={"image": 3}) == "<0><0><0>"
    with pytest.raises(ContractError, match=r"get_placeholder_str .*'video'"):
        hooks.get_dummy_text(mm_counts={"video": 1})


def test_a_hook_goes_before_an_attribute(install: Install) -> None:
    """Unless it returns None."""
    install("toy", GOOD + "        supported_mm_limits = {'image': 7}\n")
    manager = build_manager(find_adapter(["ToyForCausalLM"]).load(), context(), distribution="toy")
    assert manager.hook.get_supported_mm_limits() == {"image": 2}
    silent = GOOD.replace('return {"image": 2}', "return None") + "        supported_mm_limits = {'image': 7}\n"
    install("other", silent, architecture="OtherForCausalLM")
    manager = build_manager(find_adapter(["OtherForCausalLM"]).load(), context(), distribution="other")
    assert manager.hook.get_supported_mm_limits() == {"image": 7}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("supported_limits = {'image': 1}", "supported_limits is no attribute .*; did you mean 'supported_mm_limits'"),
        ("placeholder = {'image': ''}", "placeholder is no attribute .*; did you mean 'placeholders'"),
        ("refuse_embedding = 'why'", "refuse_embedding is no attribute .*; did you mean 'refuse_embeddings'"),
        ("get_supported_mm_limits = {'image': 1}", "is a hook.* mean 'supported_mm_limits'"),
        (
            "supported_mm_limits = ['image']",
            r"has .* as supported_mm_limits: .*{modality: most items",
        ),
        (
            "supported_mm_limits = {'image': -1}",
            "has .* as supported_mm_limits: .*{modality: most items",
        ),
        (
            "supported_mm_limits = {'image': True}",
            "has .* as supported_mm_limits: .*{modality: most items",
        ),
        (
            "placeholders = {'image': None}",
            "has .* as placeholders: .*{modality: prompt text .* get_placeholder_str",
        ),
        (
            "placeholders = property(lambda self: {})",
            "has .* as placeholders: .*{modality: prompt text",
        ),
        ("mm_fields_config = 'pixel_values'", "has .* as mm_fields_config: .*{tensor name"),
        ("refuse_embeddings = True", "has .* as refuse_embeddings: "),
        ("tool_parser = 5", "has 5 as tool_parser: give it as an attribute, the name of a form of tool calls, such as"),
        ("reasoning_parser = ''", "has '' as reasoning_parser: "),
        (
            "supported_mm_limits, placeholders = {'image': 1}, {'images': ''}",
            "placeholders has 'images', .* mean 'image'",
        ),
    ],
)
def test_wrong_attributes(install: Install, line: str, message: str) -> None:
    """A misspelt name or a wrong value is found at load."""
    source = without("get_dummy_text") if line.startswith("placeholder =") else GOOD
    source = without("get_supported_mm_limits") if line.startswith("supported_limits") else source
    install("toy", f"{source}        {line}\n")
    with pytest.raises(ContractError, match=f"toy: Adapter.*{message}"):
        find_adapter(["ToyForCausalLM"]).load()


def test_an_attribute_that_the_constructor_sets(install: Install) -> None:
    """It is read from the instance, and checked when that is made."""
    source = GOOD + "        refuse_embeddings = 'of the class'\n"
    install("toy", source.replace("self.context = context", "self.refuse_embeddings = 'of the instance'"))
    adapter = find_adapter(["ToyForCausalLM"]).load()
    manager = build_manager(adapter, context(), distribution="toy")
    assert manager.hook.refuse_embeddings(modality="image") == "of the instance"
    install("other", source.replace("self.context = context", "self.refuse_embeddings = 7"), architecture="OtherLM")
    adapter = find_adapter(["OtherLM"]).load()
    with pytest.raises(ContractError, match="other: Adapter has 7 as refuse_embeddings"):
        build_manager(adapter, context(), distribution="other")


def test_an_authors_own_attributes_are_left_alone(install: Install) -> None:
    """Methods are, and attributes whose names are not nearly one of the contract's."""
    own = "        text_per_step = 20\n        image_token = '<image>'\n        def placeholder(self): return ''\n"
    install("toy", GOOD + own)
    assert find_adapter(["ToyForCausalLM"]).load()
    older = f"{GOOD}        placeholder = '<image>'\n        supported_limits = 2\n"
    install("older", older, architecture="OlderForCausalLM")
    assert find_adapter(["OlderForCausalLM"]).load()


def test_hook_callers_are_those_of_the_specification() -> None:
    """Every hook of a loaded model has a typed caller, which is the specification's own signature."""
    callers = {name: getattr(HookCallers, name) for name in vars(HookCallers) if not name.startswith("_")}
    assert callers == {name: getattr(hookspecs, name) for name in CONTRACT.hooks - set(STATIC_HOOKS)}


def test_every_attribute_has_a_form_and_a_default() -> None:
    """The page's attributes are those that are checked, and each stands in for a hook, or says that there is none."""
    forms = attributes._FORMS
    assert set(forms) == set(AdapterAttributes.__annotations__) - {"contract"}
    hooks = {hook for name in forms.keys() - attributes.WITHOUT_HOOK for hook in REQUIRED_ATTRIBUTES.get(name, (name,))}
    assert hooks == CONTRACT.hooks & set(vars(AttributeDefaults))
    assert {*REQUIRED_ATTRIBUTES} <= set(forms)


def test_misspelt_hook(install: Install) -> None:
    """Found at load and by `corellm plugins`, with the right name."""
    install("toy", GOOD + "        @hookimpl\n        def compute_logit(self): return None\n")
    with pytest.raises(ContractError, match=r"toy: Adapter.compute_logit .*'compute_logits'"):
        find_adapter(["ToyForCausalLM"]).load()


def test_misspelt_argument(install: Install) -> None:
    """The hook, the plugin and the argument are named."""
    install("toy", GOOD.replace("get_dummy_text(self, mm_counts)", "get_dummy_text(self, mm_count)"))
    wanted = r"get_dummy_text has no argument 'mm_count'; did you mean 'mm_counts'\?; it may take mm_counts"
    with pytest.raises(ContractError, match=wanted):
        find_adapter(["ToyForCausalLM"]).load()


@pytest.mark.parametrize("arguments", ["mm_counts=None", "*, mm_counts"])
def test_arguments_that_would_never_be_given(install: Install, arguments: str) -> None:
    """Pluggy passes neither arguments with a default nor keyword-only ones: refused at load."""
    install("toy", GOOD.replace("get_dummy_text(self, mm_counts)", f"get_dummy_text(self, {arguments})"))
    with pytest.raises(ContractError, match=r"get_dummy_text .*'mm_counts'"):
        find_adapter(["ToyForCausalLM"]).load()


def test_a_broken_plugin_hides_no_shipped_checkpoint(install: Install, tmp_path: Path) -> None:
    """Checkpoints are found without importing the packages that ship them."""
    install("toy", GOOD)
    package = tmp_path / "broken"
    (package / "tiny").mkdir(parents=True)
    (package / "__init__.py").write_text("1 / 0\n")
    (tmp_path / "toy-1.0.dist-info" / "entry_points.txt").write_text(
        "[corellm.checkpoints]\ntoy-tiny = broken.tiny\ntoy-absent = broken.absent\n"
    )
    found = adapters.shipped_checkpoints()
    assert found["toy-tiny"] == package / "tiny"
    assert "toy-absent" not in found
    assert (found["demo"] / "config.json").is_file()


def test_properties_of_a_wrapper_are_not_evaluated(install: Install) -> None:
    """One that raises does not end the load."""

    class Wrapper:
        @property
        def state(self) -> str:
            raise RuntimeError("not connected yet")

        @hookimpl(wrapper=True)
        def get_supported_mm_limits(self) -> Any:
            return (yield)

    install("toy", GOOD)
    adapter = find_adapter(["ToyForCausalLM"]).load()
    manager = build_manager(adapter, context(), distribution="toy", extensions=wrapped_by(Wrapper()))
    assert manager.hook.get_supported_mm_limits() == {"image": 2}


def test_wrappers_are_checked_too(install: Install) -> None:
    """An extension's wrapper around a hook that does not exist is refused at load."""

    class Wrapper:
        @hookimpl(wrapper=True)
        def get_suported_mm_limits(self) -> Any:
            return (yield)

    install("toy", GOOD)
    adapter = find_adapter(["ToyForCausalLM"]).load()
    with pytest.raises(ContractError, match=r"extension .*Wrapper.get_suported_mm_limits .*mean"):
        build_manager(adapter, context(), distribution="toy", extensions=wrapped_by(Wrapper()))


def test_an_extension_must_not_replace_a_hook(install: Install) -> None:
    """A hook without `wrapper=True` would silently replace the adapter's."""

    class Usurper:
        @hookimpl
        def get_supported_mm_limits(self) -> dict[str, int]:
            return {"image": 1}

    install("toy", GOOD)
    adapter = find_adapter(["ToyForCausalLM"]).load()
    with pytest.raises(ContractError, match=r"Usurper.get_supported_mm_limits .*wrapper"):
        build_manager(adapter, context(), distribution="toy", extensions=wrapped_by(Usurper()))


def test_constructor_without_context(install: Install) -> None:
    """Refused before a model is loaded."""
    install("toy", GOOD.replace("def __init__(self, context): self.context = context", "pass"))
    with pytest.raises(ContractError, match=r"one argument, __init__\(self, context\)"):
        find_adapter(["ToyForCausalLM"]).load()


def test_constructor_that_raises(install: Install) -> None:
    """The error names the plugin and has its frames."""
    install("toy", GOOD.replace("self.context = context", "1 / 0"))
    adapter = find_adapter(["ToyForCausalLM"]).load()
    with pytest.raises(BrokenPluginError, match=r"(?s)toy: making .*Adapter .*ZeroDivisionError.*toy.py") as raised:
        build_manager(adapter, context(), distribution="toy")
    assert_only_frame_of("toy.py", raised.value)


def test_constructor_that_uses_the_processor(install: Install) -> None:
    """The processor is made after the adapter; the error says where to use it instead."""
    install("toy", GOOD.replace("self.context = context", "self.context = context.hf_processor"))
    adapter = find_adapter(["ToyForCausalLM"]).load()
    with pytest.raises(BrokenPluginError, match=r"toy: making .*ContractError: .*in a hook"):
        build_manager(adapter, context(), distribution="toy")


def test_none_falls_through_to_the_default(install: Install) -> None:
    """Where an adapter returns None, the core's default is called."""

    class Default:
        @hookimpl(trylast=True)
        def compute_logits(self) -> str:
            return "default"

    install("toy", GOOD + "        @hookimpl\n        def compute_logits(self): return None\n")
    adapter = find_adapter(["ToyForCausalLM"]).load()
    manager = build_manager(adapter, context(), distribution="toy", defaults=[Default()])
    assert manager.hook.compute_logits(model=None, hidden_states=None) == "default"


def test_extension_wrapper_surrounds_the_adapter(install: Install) -> None:
    """An extension receives the adapter's return value and may change it."""

    class Doubling:
        @hookimpl(wrapper=True)
        def get_supported_mm_limits(self) -> Any:
            limits = yield
            return {modality: 2 * limit for modality, limit in limits.items()}

    install("toy", GOOD)
    adapter = find_adapter(["ToyForCausalLM"]).load()
    manager = build_manager(adapter, context(), distribution="toy", extensions=wrapped_by(Doubling()))
    assert manager.hook.get_supported_mm_limits() == {"image": 4}


def test_one_manager_per_model(install: Install) -> None:
    """Loaded models do not share adapters."""
    install("toy", GOOD)
    adapter = find_adapter(["ToyForCausalLM"]).load()
    first = build_manager(adapter, context(), distribution="toy")
    second = build_manager(adapter, context(), distribution="toy")
    first.unregister(name="toy")
    assert first.hook.get_supported_mm_limits() is None
    assert second.hook.get_supported_mm_limits() == {"image": 2}


def test_a_distribution_seen_twice_is_one_claim(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An editable install and its source on the path are not in conflict with themselves."""
    install("toy", GOOD)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    assert len([e for e in installed_adapters() if e.distribution == "toy"]) == 1


def test_bad_signature_check_is_not_fooled_by_inheritance() -> None:
    """A subclass that overrides a hook without the decorator is caught too."""

    class Base:
        contract = 1

        @hookimpl
        def get_dummy_text(self) -> str:
            return ""

    class Derived(Base):
        def get_dummy_text(self) -> str:
            return "x"

    with pytest.raises(ContractError, match="lacks @hookimpl"):
        CONTRACT.check_adapter(Derived, "toy")
