"""A mutant: a plugin with one mistake, and the rule of the contract that must catch it."""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import dedent, indent


@dataclass(frozen=True)
class Mutant:
    """A mistake that an author might make, as an edit of a plugin that works."""

    wrong: str
    """The mistake, in a phrase."""
    rule: str
    """The rule that catches it, with its parameters in brackets where some of them do."""
    hook: str | tuple[str, ...]
    """The hook that the rule's message must name; several where any of them will do."""
    contract: str
    """The contract class, as pytest has it: `corellm_llava.contract::TestLlava`."""
    file: str
    """Path within the plugin's package."""
    old: str
    """Code that occurs once in the file."""
    new: str
    """Its replacement."""

    @property
    def package(self) -> str:
        """Import name of the plugin's package."""
        return self.contract.partition(".")[0]

    @property
    def family(self) -> str:
        """Name of the contract class without `Test`: `Llava`."""
        return self.contract.rpartition("::Test")[2]

    @property
    def hooks(self) -> tuple[str, ...]:
        """`hook` as a tuple."""
        return (self.hook,) if isinstance(self.hook, str) else self.hook

    def edit(self, source: str) -> str:
        """Return the file's source with the mistake in it.

        Raises:
            ValueError: `old` does not occur exactly once: the plugin has changed. Or a class has a method twice then.
        """
        if source.count(self.old) != 1:
            raise ValueError(
                f"{self.family}, {self.wrong}: {self.file} has this {source.count(self.old)} times:\n{self.old}"
            )
        edited = source.replace(self.old, self.new)
        twice = _methods_given_twice(edited) - _methods_given_twice(source)
        if twice:
            raise ValueError(
                f"{self.family}, {self.wrong}: {self.file} has {', '.join(sorted(twice))} already, and of two methods "
                f"the last one counts; change it with Plugin.edited"
            )
        return edited

    def apply(self, package: Path) -> None:
        """Make the edit in a copy of the plugin; raises what `edit` raises."""
        path = package / self.file
        path.write_text(self.edit(path.read_text(encoding="utf-8")), encoding="utf-8")


def _methods_given_twice(source: str) -> set[str]:
    """Return the methods, `Class.name`, that a module's source defines more than once in a class."""
    classes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    methods = Counter(f"{c.name}.{f.name}" for c in classes for f in c.body if isinstance(f, ast.FunctionDef))
    return {name for name, count in methods.items() if count > 1}


_PARSER = """
@hookimpl
def get_data_parser(self):
    from corellm.multimodal import DataParser

    class Parser(DataParser):
METHODS

    return Parser(
        hidden_size=self.context.hf_config.text_config.hidden_size,
        sampling_rate=lambda: self.context.hf_processor.feature_extractor.sampling_rate,
    )
"""


@dataclass(frozen=True)
class Plugin:
    """Where mutants of one plugin are made."""

    contract: str
    file: str = "__init__.py"
    seam: str = "    @hookimpl\n    def get_dummy_mm_data("
    """A method of the adapter; `given` puts another one before it."""

    @property
    def package(self) -> str:
        """Import name of its package."""
        return self.contract.partition(".")[0]

    def of(self, file: str) -> Plugin:
        """Return the same plugin with mutants made in another file."""
        return replace(self, file=file)

    def edited(self, wrong: str, rule: str, hook: str | tuple[str, ...], *, old: str, new: str) -> Mutant:
        """Return a mutant that replaces existing code."""
        return Mutant(wrong, rule, hook, self.contract, self.file, old, new)

    def given(self, wrong: str, rule: str, hook: str | tuple[str, ...], method: str) -> Mutant:
        """Return a mutant with an additional, wrong method."""
        code = indent(dedent(method).strip("\n"), "    ")
        return Mutant(wrong, rule, hook, self.contract, self.file, self.seam, f"{code}\n\n{self.seam}")

    def parsing(self, wrong: str, rule: str, hook: str | tuple[str, ...], methods: str) -> Mutant:
        """Return a mutant with a parser of its own: the core's, with other methods."""
        return self.given(wrong, rule, hook, _PARSER.replace("METHODS", indent(dedent(methods).strip("\n"), " " * 8)))


LLAVA = Plugin("corellm_llava.contract::TestLlava")
GEMMA3 = Plugin("corellm_gemma3.contract::TestGemma3")
FUYU = Plugin("corellm_fuyu.contract::TestFuyu")
BLIP2 = Plugin("corellm_blip2.contract::TestBlip2")
INSTRUCT_BLIP = Plugin("corellm_blip2.instruct.contract::TestInstructBlip", "instruct/__init__.py")
QWEN2 = Plugin("corellm_qwen_vl.contract::TestQwen2VL", "qwen2.py")
QWEN2_5 = Plugin("corellm_qwen_vl.contract::TestQwen2_5VL", "qwen2.py")
QWEN3 = Plugin("corellm_qwen_vl.contract::TestQwen3VL", "qwen3.py")
QWEN_VL = Plugin("corellm_qwen_vl.original.contract::TestQwenVL", "original/__init__.py")
AUDIO = Plugin("corellm_qwen_audio.contract::TestQwen2Audio")
