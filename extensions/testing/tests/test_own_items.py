"""Items in a form of the author's own, which the parser identifies, and arguments of the author's own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from extensions.testing.tests.mutants.harness import examine
from extensions.testing.tests.mutants.mutant import LLAVA, Mutant

RULE = "test_identity_follows_content"
_READS = """
def load_image(self, value):
    image, said = value if isinstance(value, tuple) else (value, "")
    image = super().load_image(image)
    KEEP
    return image
"""
_ITEMS = """    adapter = Llava
    own_items = {"image": [(Image.new("RGB", (60, 50)), said) for said in ("left", "right")]}
"""


@dataclass(frozen=True)
class _Instructed:
    """LLaVA with images that may come with an instruction, and a contract that says so."""

    parser: Mutant

    def apply(self, package: Path) -> None:
        self.parser.apply(package)
        contract = package / "contract.py"
        stated = contract.read_text(encoding="utf-8").replace("    adapter = Llava\n", _ITEMS)
        contract.write_text(stated.replace("from corellm_testing", "from PIL import Image\n\nfrom corellm_testing", 1))


@pytest.mark.parametrize("keep", ['image.info["said"] = said', "image.said = said"])
def test_what_the_parser_returns_identifies_an_item(tmp_path: Path, keep: str) -> None:
    """In `info` or as an attribute: the rule is kept."""
    parser = LLAVA.parsing("", RULE, "get_data_parser", _READS.replace("KEEP", keep))
    assert examine(parser.contract, [RULE], tmp_path, _Instructed(parser)).passed == [RULE]


def test_a_table_beside_it_does_not(tmp_path: Path) -> None:
    """Two instructions with one image would get the same embeddings: the rule breaks, and names the parser."""
    keep = 'self.__dict__.setdefault("said", []).append((image, said))'
    parser = LLAVA.parsing("", RULE, "get_data_parser", _READS.replace("KEEP", keep))
    broken = examine(parser.contract, [RULE], tmp_path, _Instructed(parser)).broken(RULE)
    assert broken is not None
    assert broken.hook == "get_data_parser"
    assert "own_items" in str(broken.expected)


ARGUMENT_RULE = "test_every_processor_argument_is_kept"
_TAKES = """
@hookimpl
def call_hf_processor(self, mm_data, mm_kwargs):
    from corellm.multimodal import check_processor_kwargs

    given = dict(mm_kwargs)
    said = given.pop("said", "")CHANGED
    check_processor_kwargs(self.context.hf_processor, given)
    outputs = self.context.hf_processor(images=mm_data["image"], return_tensors="pt", **given)
    return {"pixel_values": outputs["pixel_values"] + len(said)}
"""
_CONTRACT = '''"""The contract of a LLaVA that takes a text beside an image."""

from corellm_testing import AdapterContract, Reference
from corellm_llava import Llava


class Said(Reference):
    def process(self, text, media, kwargs):
        given = dict(kwargs)
        said = given.pop("said", "")
        output = super().process(text, media, given)
        return output | {"pixel_values": output["pixel_values"] + len(said)}


class TestLlava(AdapterContract):
    adapter = Llava
    reference = Said
    argument_values = {"said": ["left", "rights"]}
'''


@dataclass(frozen=True)
class _Takes:
    """LLaVA with an argument of its own, a text, and a contract that says so."""

    adapter: Mutant

    def apply(self, package: Path) -> None:
        self.adapter.apply(package)
        (package / "contract.py").write_text(_CONTRACT)


@pytest.mark.parametrize("changed", ["", ".strip()"])
def test_a_text_argument_is_kept_whole(tmp_path: Path, changed: str) -> None:
    """One that only the adapter takes is tried, too, and with spaces around it: they are the user's."""
    adapter = LLAVA.given("", ARGUMENT_RULE, "call_hf_processor", _TAKES.replace("CHANGED", changed))
    verdict = examine(adapter.contract, [ARGUMENT_RULE], tmp_path, _Takes(adapter))
    broken = verdict.broken(ARGUMENT_RULE)
    assert (verdict.passed == [ARGUMENT_RULE]) == (not changed), str(verdict)
    assert (broken is not None and "'  left\\n'" in str(broken.expected)) == bool(changed), str(verdict)
