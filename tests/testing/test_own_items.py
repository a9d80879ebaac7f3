"""Items in a form of the author's own: what the parser returns identifies them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.mutants.harness import examine
from tests.mutants.mutant import LLAVA, Mutant

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
        contract.write_text(stated.replace("from corellm.testing", "from PIL import Image\n\nfrom corellm.testing", 1))


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
