"""Rules of the contract: tests with a docstring, a failure that says what to change, a guard against removal.

Knows pytest and hooks' names; knows no model.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from inspect import getattr_static, getdoc
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import pytest

from corellm.errors import (
    EncoderError,
    ItemLimitError,
    MediaError,
    MissingPlaceholderError,
    PlaceholderError,
    ProcessingError,
    ProcessorKwargsError,
    RequestFailedError,
    UnsupportedModalityError,
)
from corellm.plugin.contract import CONTRACT

if TYPE_CHECKING:
    _Failed = AssertionError
else:

    class _Failed(pytest.fail.Exception, AssertionError):
        """A failure whose traceback pytest shows only if `pytrace` is true."""


class ContractBroken(_Failed):
    """A broken rule of the contract: the hook to look at, what was expected, what came instead, what to change.

    pytest shows these lines alone, unless they have a cause or a hypothesis example.
    """

    def __init__(self, hook: str, rule: str, *, expected: object, got: object, fix: str) -> None:
        self.hook, self.rule, self.expected, self.got, self.fix = hook, rule, expected, got, fix
        super().__init__(
            f"{hook} breaks a rule of the contract\n"
            f"  rule      {rule}\n"
            f"  expected  {_indented(expected)}\n"
            f"  got       {_indented(got)}\n"
            f"  fix       {_indented(fix)}"
        )

    @property
    def pytrace(self) -> bool:
        """Whether pytest shows the traceback with causes and notes: only where there are any."""
        return self.__cause__ is not None or bool(getattr(self, "__notes__", ()))

    @pytrace.setter
    def pytrace(self, value: bool) -> None:
        """Ignore the value that pytest's constructor sets."""


def _indented(value: object) -> str:
    return str(value).replace("\n", "\n            ")


AUTHORS = frozenset(
    {"adapter", "architecture", "argument_values", "chat_prompts", "cut_by", "exceptions", "make_checkpoint"}
    | {"own_items", "processor_kwargs", "reference", "same_roles", "without_effect"}
)
"""Attributes that a contract class may set."""


class Rules:
    """A part of the contract: methods `test_*`, each one rule, whose docstring states it.

    A subclass that replaces or removes a rule is refused when it is defined. A rule named in `exceptions` is skipped
    with the reason given there.
    """

    exceptions: ClassVar[Mapping[str, str]] = {}
    """`{rule: why this adapter does not keep it}`."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls._check()

    @classmethod
    def _check(cls) -> None:
        """Refuse a class that leaves out rules other than by `exceptions`.

        Raises:
            TypeError: a rule or a helper of rules is replaced or removed; an exception names no rule, or gives no
                reason.
        """
        rules = rules_of(cls)
        for name in cls.exceptions:
            if name not in rules:
                raise TypeError(f"{cls.__name__}.exceptions: {name!r} is no rule of the contract")
        cls._require_reasons("exceptions", "the rule is not kept")
        for name, member in _own_members(cls).items():
            if name in rules and getattr_static(cls, name, None) is not member:
                raise TypeError(
                    f"{cls.__name__}.{name} replaces or removes a rule of the contract; give your test a name of its "
                    f"own, or say why the rule is not kept: exceptions = {{{name!r}: 'the reason'}}"
                )
            if name not in AUTHORS and getattr_static(cls, name, None) is not member:
                raise TypeError(
                    f"{cls.__name__}.{name} replaces a helper of the rules; choose another name (an author may set "
                    f"{', '.join(sorted(AUTHORS))})"
                )
        if getattr_static(cls, "__test__", True) is not True:
            raise TypeError(f"{cls.__name__}.__test__ hides the rules; name those not kept in exceptions")

    @classmethod
    def _require_reasons(cls, attribute: str, why: str) -> None:
        """Refuse an attribute `{name: reason}` with a reason that is not a sentence.

        Raises:
            TypeError: names the entry, and what its reason must say.
        """
        for name, reason in getattr(cls, attribute).items():
            if not isinstance(reason, str) or sum(word.isalpha() for word in reason.split()) < 3:
                raise TypeError(f"{cls.__name__}.{attribute}[{name!r}] must say in a sentence why {why}")

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _checked(cls) -> None:
        """Check the class once more: it can be changed after it is made."""
        cls._check()

    @pytest.fixture(autouse=True)
    def _rule(self, request: pytest.FixtureRequest) -> None:
        """Set `rule` for the failure's message; skip a rule that has an exception."""
        name: str = request.function.__name__
        if name in self.exceptions:
            pytest.skip(f"not kept by {type(self).__name__}: {self.exceptions[name]}")
        statement = (getdoc(request.function) or "").partition("\n\n")[0]
        self.rule = f"{name}: {' '.join(statement.split())}"

    def fail(self, hook: str, *, expected: object, got: object, fix: str) -> NoReturn:
        """Raise that the rule is broken.

        Args:
            hook: the one to look at.
            expected, got: what the rule requires, and what came.
            fix: what to change in the adapter.
        """
        __tracebackhide__ = True
        raise ContractBroken(hook, self.rule, expected=expected, got=got, fix=fix) from None

    def require(self, kept: bool, hook: str, *, expected: object, got: object, fix: str) -> None:
        """Call `fail` unless `kept`."""
        __tracebackhide__ = True
        if not kept:
            self.fail(hook, expected=expected, got=got, fix=fix)

    @contextmanager
    def expecting(self, what: str, *, hook: str | None = None, fix: str = "see the error") -> Iterator[None]:
        """Turn any error raised inside into a broken rule: `what` was expected instead.

        `hook` is the one to look at where the error was raised in no hook and names none.
        """
        __tracebackhide__ = True
        try:
            yield
        except ContractBroken:
            raise
        except Exception as error:
            raise ContractBroken(
                guilty_hook(error, hook), self.rule, expected=what, got=f"{type(error).__name__}: {error}", fix=fix
            ) from error

    @contextmanager
    def refusing(self, hook: str, what: str, *kinds: type[Exception], words: str = "", fix: str) -> Iterator[None]:
        """Break the rule unless one of `kinds` is raised inside, with `words` in a message of one line."""
        __tracebackhide__ = True
        names = " or ".join(kind.__name__ for kind in kinds)
        expected = f"{what} is refused with {names}" + (f" that says {words!r}" if words else "")
        message: str | None = None
        try:
            yield
        except kinds as error:
            message = str(error)
        except Exception as error:
            raise ContractBroken(
                hook, self.rule, expected=expected, got=f"{type(error).__name__}: {error}", fix=fix
            ) from error
        kept = message is not None and words in message and "\n" not in message
        self.require(kept, hook, expected=expected, got=message or "it was accepted", fix=fix)


def _own_members(contract: type[Rules]) -> dict[str, Any]:
    """Return the members that a contract class inherits from this package, without dunder names."""
    found: dict[str, Any] = {}
    for base in reversed(contract.__mro__):
        if issubclass(base, Rules) and base.__module__.startswith("corellm_testing."):
            found.update({name: member for name, member in vars(base).items() if not name.startswith("__")})
    return {name: member for name, member in found.items() if name != "_abc_impl"}


def rules_of(contract: type[Rules]) -> dict[str, Any]:
    """Return `{name: function}` of the rules that a contract class inherits, in their order."""
    found: dict[str, Any] = {}
    for base in reversed(contract.__mro__[1:]):
        if issubclass(base, Rules) and base.__module__.startswith("corellm_testing."):
            found.update({name: member for name, member in vars(base).items() if name.startswith("test_")})
    return found


BLAMED: Mapping[type[Exception], str] = {
    MissingPlaceholderError: "get_prompt_updates, get_placeholder_str or get_dummy_text",
    PlaceholderError: "get_prompt_updates",
    ItemLimitError: "get_supported_mm_limits",
    UnsupportedModalityError: "get_supported_mm_limits",
    MediaError: "get_data_parser",
    ProcessorKwargsError: "call_hf_processor",
    EncoderError: "get_multimodal_embeddings",
    ProcessingError: "call_hf_processor",
    RequestFailedError: "merge_multimodal_embeddings or get_rope_positions",  # what the decoder is given
}
"""The likely hook behind the core's own errors; subclasses come before their bases."""


FACTORIES: Mapping[str, str] = {
    "config.json cannot be read": "register_config",
    "the tokenizer cannot be loaded": "register_tokenizer",
    "the processor cannot be made": "register_processor",
}
"""What the core says of a part of the checkpoint that nothing makes: the hook that would."""


TOGETHER = (
    ("get_prompt_updates", "get_multimodal_embeddings", " and "),  # they count differently
    ("get_dummy_mm_data", "get_mm_max_tokens_per_item", " or "),  # either may say for what memory is planned
    ("get_dummy_mm_data", "get_data_parser", " or "),  # one reads what the other returns
    ("get_mm_fields_config", "call_hf_processor", " or "),  # one divides what the other returns
    ("get_prompt_updates", "call_hf_processor", " or "),  # one counts no token, or the other takes what is too small
    ("get_multimodal_embeddings", "get_multimodal_embedding_width", " or "),  # one states how wide the other's are
)
"""Hooks that a message names together, of which none is the likelier one."""


NAMED_BEFORE: Mapping[str, str] = {"corellm.multimodal.processor_kwargs": "get_mm_kwargs_names"}
"""Modules of the core that refuse by what a hook has named before."""


def guilty_hook(error: BaseException | None, otherwise: str | None = None) -> str:
    """Return the hook that an error names, else the innermost one in its traceback or its causes', or behind it.

    The innermost one, too, where the error says that a hook failed which called it. Without either: `otherwise`, if
    given, else the likely one for errors of this kind. What the reference raises is the contract class's, unless
    `otherwise` names it among others.
    """
    seen: str | None = None
    if _is_the_references(error):
        return otherwise if otherwise is not None and _CLASS in otherwise else _CLASS
    message = str(error)
    by_kind = next((hook for kind, hook in BLAMED.items() if isinstance(error, kind)), "the adapter")
    while error is not None:
        trace = error.__traceback__
        while trace is not None:
            name, module = trace.tb_frame.f_code.co_name, trace.tb_frame.f_globals["__name__"]
            if name in CONTRACT.hooks or module in NAMED_BEFORE:
                seen = NAMED_BEFORE.get(module, name)
            trace = trace.tb_next
        frames = [name for note in getattr(error, "__notes__", ()) for name in re.findall(r", in (\w+)\n", note)]
        seen = next((name for name in reversed(frames) if name in CONTRACT.hooks), seen)  # where frames were dropped
        error = error.__cause__
    named = [name for name in sorted(CONTRACT.hooks, key=len, reverse=True) if name in message]
    for one, other, between in TOGETHER:
        if {one, other} <= set(named):
            return f"{one}{between}{other}"
    named += [hook for words, hook in FACTORIES.items() if words in message]
    if named and seen is not None and f"{named[0]} failed with" in message:
        return seen
    return (named[0] if named else None) or seen or otherwise or by_kind


_CLASS = "the contract class"


def _is_the_references(error: BaseException | None) -> bool:
    """Whether an error, or its cause, was raised in a method of a `Reference`, outside all hooks."""
    from corellm_testing.reference import Reference

    while error is not None:
        trace = error.__traceback__
        while trace is not None:
            if isinstance(trace.tb_frame.f_locals.get("self"), Reference):
                return True
            trace = trace.tb_next
        error = error.__cause__
    return False


def child_environment() -> dict[str, str]:
    """Return the environment of a process with this one's import path and another seed for hashes of strings."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONHASHSEED": "4321"}
