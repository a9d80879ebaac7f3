"""What a mutant is: a plugin with one mistake in it, and the rule of the contract that has to notice."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import dedent, indent


@dataclass(frozen=True)
class Mutant:
    """A mistake that an author might make, as an edit of a plugin that works."""

    wrong: str
    """What is wrong, in a phrase."""
    rule: str
    """The rule that catches it, with its parameters in brackets where some of them do."""
    hook: str | tuple[str, ...]
    """What the rule's message has to name; several where each would be fair."""
    contract: str
    """The contract class, as pytest has it: `corellm_llava.contract::TestLlava`."""
    file: str
    """Within the plugin's package."""
    old: str
    """A piece of the file that occurs once."""
    new: str
    """What stands there instead."""

    @property
    def package(self) -> str:
        """The plugin's, by its import name."""
        return self.contract.partition(".")[0]

    @property
    def family(self) -> str:
        """By its contract class: `Llava`."""
        return self.contract.rpartition("::Test")[2]

    @property
    def hooks(self) -> tuple[str, ...]:
        """As a tuple."""
        return (self.hook,) if isinstance(self.hook, str) else self.hook

    def edit(self, source: str) -> str:
        """Return the file's source with the mistake in it.

        Raises:
            ValueError: `old` does not occur exactly once: the plugin has changed.
        """
        if source.count(self.old) != 1:
            raise ValueError(
                f"{self.family}, {self.wrong}: {self.file} has this {source.count(self.old)} times:\n{self.old}"
            )
        return source.replace(self.old, self.new)

    def apply(self, package: Path) -> None:
        """Make the edit in a copy of the plugin; raises what `edit` raises."""
        path = package / self.file
        path.write_text(self.edit(path.read_text(encoding="utf-8")), encoding="utf-8")


@dataclass(frozen=True)
class Plugin:
    """Where mutants of one plugin are made."""

    contract: str
    file: str = "__init__.py"
    seam: str = "    @hookimpl\n    def get_supported_mm_limits("
    """A method of the adapter, before which another one may be put."""

    def of(self, file: str) -> Plugin:
        """Another file of the same plugin."""
        return replace(self, file=file)

    def edited(self, wrong: str, rule: str, hook: str | tuple[str, ...], *, old: str, new: str) -> Mutant:
        """Code that is there made wrong."""
        return Mutant(wrong, rule, hook, self.contract, self.file, old, new)

    def given(self, wrong: str, rule: str, hook: str | tuple[str, ...], method: str) -> Mutant:
        """A method more, which is wrong."""
        code = indent(dedent(method).strip("\n"), "    ")
        return Mutant(wrong, rule, hook, self.contract, self.file, self.seam, f"{code}\n\n{self.seam}")


LLAVA = Plugin("corellm_llava.contract::TestLlava")
FUYU = Plugin("corellm_fuyu.contract::TestFuyu")
BLIP2 = Plugin("corellm_blip2.contract::TestBlip2")
QWEN2 = Plugin("corellm_qwen_vl.contract::TestQwen2VL", "qwen2.py")
QWEN2_5 = Plugin("corellm_qwen_vl.contract::TestQwen2_5VL", "qwen2.py")
QWEN3 = Plugin("corellm_qwen_vl.contract::TestQwen3VL", "qwen3.py")
QWEN_VL = Plugin("corellm_qwen_vl.original.contract::TestQwenVL", "original/__init__.py")
AUDIO = Plugin("corellm_qwen_audio.contract::TestQwen2Audio")
