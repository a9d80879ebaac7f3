"""No rule of the contract can be left out silently, and a broken rule says what to change."""

from __future__ import annotations

import copy
import inspect
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from corellm.errors import (
    EmbeddingCountError,
    EncoderError,
    MediaError,
    MultiModalError,
    ProcessingError,
    RequestFailedError,
)
from corellm.multimodal.hook_results import adapter_errors
from corellm.plugin.contract import CONTRACT
from corellm.system.failures import failure_of
from corellm_testing import AdapterContract, ContractBroken, Reference
from corellm_testing.content import content
from corellm_testing.rules import guilty_hook, rules_of

RULES = Path(__file__).with_name("rules.txt").read_text(encoding="utf-8").split()


class Kept(AdapterContract):
    """Defined to inspect its rules, not to run them."""

    adapter = object


def test_no_rule_is_lost() -> None:
    """The rules are those in `rules.txt`; removing or renaming one needs a change there, too."""
    assert sorted(rules_of(Kept)) == RULES


def test_every_rule_is_stated() -> None:
    """Each has a docstring whose first paragraph is a sentence: reports and documentation show it."""
    for name, rule in rules_of(Kept).items():
        statement = (inspect.getdoc(rule) or "").partition("\n\n")[0]
        assert statement.endswith("."), name
        assert len(statement.split()) > 5, name


@pytest.mark.parametrize("replacement", [None, lambda self: None, property(lambda self: None)])
def test_replacing_a_rule_is_an_error(replacement: Any) -> None:
    """Removing, emptying or replacing a rule fails when the class is defined, in the class and in a mixin."""
    with pytest.raises(TypeError, match="test_rows_match_the_mask replaces"):
        type("Mine", (AdapterContract,), {"adapter": object, "test_rows_match_the_mask": replacement})
    mixin = type("Mixin", (), {"test_rows_match_the_mask": replacement})
    with pytest.raises(TypeError, match="replaces or removes"):
        type("Mine", (mixin, AdapterContract), {"adapter": object})


@pytest.mark.parametrize(
    ("exceptions", "words"),
    [
        ({"test_nothing": "it is not a rule"}, "'test_nothing' is no rule"),
        ({"test_rows_match_the_mask": ""}, "sentence why"),
        ({"test_rows_match_the_mask": "later"}, "sentence why"),
    ],
)
def test_exceptions_need_reasons(exceptions: dict[str, str], words: str) -> None:
    """Only rules can be excepted, and only with a reason."""
    with pytest.raises(TypeError, match=words):
        type("Mine", (AdapterContract,), {"adapter": object, "exceptions": exceptions})


def test_arguments_without_effect_need_reasons() -> None:
    """An argument is declared to have no effect with a reason only."""
    with pytest.raises(TypeError, match=r"without_effect\['padding'\]"):
        type("Mine", (AdapterContract,), {"adapter": object, "without_effect": {"padding": "later"}})


@pytest.mark.parametrize("prompts", ["Question: And now?", ("Question: And now?",), ("a", None)])
def test_prompts_of_conversations_are_two_texts(prompts: Any) -> None:
    """Anything else is refused when the class is defined."""
    with pytest.raises(TypeError, match="chat_prompts"):
        type("Mine", (AdapterContract,), {"adapter": object, "chat_prompts": prompts})


@pytest.mark.parametrize("roles", [("system", "tool"), (("system", "robot"),)])
def test_same_roles_are_groups_of_roles(roles: Any) -> None:
    """Anything else is refused when the class is defined."""
    with pytest.raises(TypeError, match="same_roles"):
        type("Mine", (AdapterContract,), {"adapter": object, "same_roles": roles})


def test_an_exception_is_shown(pytester: pytest.Pytester) -> None:
    """A rule with a reason is reported as skipped, reason and all; an author's own tests run."""
    pytester.makepyfile(
        test_mine="""
        from corellm_testing.contract.packaging import PackagingRules
        from corellm_llava import Llava

        class TestMine(PackagingRules):
            adapter = Llava
            exceptions = {"test_import_is_light": "this adapter is but an example"}

            def test_my_own(self):
                assert True
        """
    )
    nodes = [f"test_mine.py::TestMine::{name}" for name in ("test_import_is_light", "test_my_own")]
    # in a subprocess: in this process pytester would unload torch afterwards, which cannot be imported twice
    result = pytester.runpytest_subprocess("-rs", "-p", "no:cacheprovider", *nodes)
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(["*not kept by TestMine: this adapter is but an example*"])


def test_a_broken_rule_says_what_to_change() -> None:
    """Hook, rule, expected, got and fix are in the message, each on its line."""
    broken = ContractBroken("get_prompt_updates", "as many", expected=3, got="4\n5", fix="count")
    assert str(broken).splitlines() == [
        "get_prompt_updates breaks a rule of the contract",
        "  rule      as many",
        "  expected  3",
        "  got       4",
        "            5",
        "  fix       count",
    ]


def test_a_broken_rule_prints_its_lines_and_no_more(pytester: pytest.Pytester) -> None:
    """Without traceback, but with the hypothesis example and the adapter's error behind it."""
    pytester.makepyfile(
        """
        import pytest
        from hypothesis import given, settings, strategies as st
        from corellm_testing import ContractBroken
        from corellm_testing.rules import Rules

        def broken():
            return ContractBroken("get_dummy_text", "as many", expected=3, got=4, fix="count")

        def test_plain():
            raise broken()

        def test_refusing():
            part = Rules()
            part.rule = "refusals"
            with part.refusing("get_data_parser", "an empty file", ValueError, words="needle", fix="say so"):
                raise ValueError("something else")

        def test_with_an_example():
            @settings(derandomize=True, database=None)
            @given(st.integers())
            def kept(number):
                if number > 100:
                    raise broken()
            kept()

        def test_with_a_cause():
            try:
                1 / 0
            except ZeroDivisionError as error:
                raise broken() from error

        @pytest.mark.xfail(raises=AssertionError, strict=True)
        def test_expected():
            raise broken()
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:schemathesis")  # it prints no arguments
    result.assert_outcomes(failed=4, xfailed=1)
    shown = result.stdout.str()
    plain, refusing, example, cause = re.split(r"_{3,} test_\w+ _{3,}\n", shown)[1:5]
    assert len(plain.splitlines()) == 5
    assert "something else" in refusing
    assert "During handling" not in refusing
    assert "number=101" in example
    assert "1 / 0" in cause


def test_the_guilty_hook_is_found() -> None:
    """It is found by name in the message, or by the frame that raised, in causes too."""
    assert guilty_hook(ValueError("get_mm_fields_config gave nonsense")) == "get_mm_fields_config"

    def get_prompt_updates() -> None:
        raise MediaError("no name here")

    def serve() -> None:
        try:
            get_prompt_updates()
        except MediaError as error:
            raise RuntimeError("the adapter failed") from error

    with pytest.raises(RuntimeError) as raised:
        serve()
    assert guilty_hook(raised.value) == "get_prompt_updates"
    assert "get_prompt_updates" in CONTRACT.hooks
    assert guilty_hook(KeyError("x")) == "the adapter"


def test_what_the_reference_raises_is_not_the_adapters() -> None:
    """Whatever its kind: a MediaError of the reference does not say that the adapter's parser is wrong."""

    class Broken(Reference):
        def process(self, text: str, media: Any, kwargs: Any) -> dict[str, Any]:
            raise MediaError("no name here")

    with pytest.raises(MediaError) as raised:
        Broken(Path("nowhere")).process("", {}, {})
    assert guilty_hook(raised.value, "get_data_parser") == "the contract class"


def test_the_reference_compares_any_value() -> None:
    """Tensors, lists of them and plain data are the same or not; none is an error."""
    reference = Reference(Path("nowhere"))
    ones = torch.ones(2)
    for ours, theirs in ((ones, ones.clone()), ([ones], [ones.clone()]), (1.5, 1.5), ("square", "square")):
        assert reference.same("a shared field", ours, theirs)
    for ours, theirs in ((ones, ones.double()), ([ones], [ones, ones]), (1.5, 2.5), (ones, "square"), (None, ones)):
        assert not reference.same("a shared field", ours, theirs)


def test_a_reference_without_a_processor_is_the_contract_classs(tiny_llava: Path, tmp_path: Path) -> None:
    """Where `AutoProcessor` fails no hook is blamed; what to write is said."""
    checkpoint = shutil.copytree(tiny_llava, tmp_path / "checkpoint")
    (checkpoint / "processor_config.json").write_text('{"image_processor": {"image_processor_type": "Unknown"}}')
    with pytest.raises(ContractBroken) as broken:
        Reference(checkpoint).process("What?", {}, {})
    assert broken.value.hook == "the contract class"
    assert "Unrecognized image processor" in str(broken.value.got)
    assert "`processor`" in broken.value.fix


@pytest.mark.parametrize(
    ("value", "change"),
    [
        (np.zeros((2, 3)), lambda array: array.fill(1)),
        (torch.zeros(2, 3), lambda tensor: tensor.T[0].fill_(1)),
        (Image.new("RGB", (4, 3)), lambda image: image.thumbnail((2, 2))),
        ({"size": {"height": 4, "mean": [0.1, 0.2]}}, lambda kwargs: kwargs["size"]["mean"].pop()),
        ([{"role": "user", "content": [{"text": "a"}]}], lambda messages: messages[0]["content"][0].clear()),
        (bytearray(b"file"), lambda file: file.reverse()),
    ],
)
def test_content_shows_every_change(value: Any, change: Any) -> None:
    """Content of a copy is equal; after a change in place, be it of a nested value, it is not."""
    before = content(value)
    assert content(copy.deepcopy(value)) == before
    change(value)
    assert content(value) != before


def test_two_hooks_that_contradict_each_other_are_both_named() -> None:
    """An error about counts names the two hooks that count, one about the plan those that may say what is planned."""
    error = EmbeddingCountError("image 0: get_prompt_updates made room for 3, get_multimodal_embeddings returned 4")
    assert guilty_hook(error) == "get_prompt_updates and get_multimodal_embeddings"
    planned = MultiModalError("the largest item of get_dummy_mm_data or get_mm_max_tokens_per_item")
    assert guilty_hook(planned) == "get_dummy_mm_data or get_mm_max_tokens_per_item"
    assert guilty_hook(EncoderError("image 0: its embeddings hold NaN")) == "get_multimodal_embeddings"


class TestFailuresOfHooks:
    """An error that arose in a hook names it, also behind another hook's, and after its frames were dropped."""

    def get_placeholder_str(self) -> str:
        """Fail, as an adapter's hook would."""
        raise ValueError("no tokenizer")

    def test_the_hook_that_another_called(self) -> None:
        """A hook's error that another hook met is the former's."""
        with pytest.raises(ProcessingError) as caught, adapter_errors("get_dummy_text"):
            self.get_placeholder_str()
        assert guilty_hook(caught.value) == "get_placeholder_str"

    def test_the_hook_of_a_failed_step(self) -> None:
        """The engine keeps an error without frames; its note says where it arose."""
        try:
            self.get_placeholder_str()
        except ValueError as error:
            failed = failure_of("the forward pass", error, RequestFailedError)
        assert guilty_hook(failed) == "get_placeholder_str"

    def test_a_failed_step_without_a_hook(self) -> None:
        """What the decoder is given comes from two hooks."""
        failed = failure_of("the forward pass", ValueError("shapes differ"), RequestFailedError)
        assert guilty_hook(failed) == "merge_multimodal_embeddings or get_rope_positions"
