"""Parsers of reasoning: published forms, prompts that begin it, every cut, broken outputs; and chains of parsers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corellm_server.parsing.names import REASONING, Parsers, _offered
from corellm_server.parsing.output import LeftOut, OutputChain
from corellm_server.tools.objects import HermesCalls
from extensions.server.tests.parsing.forms import TOOLS, found, read, source_of

PARSERS: dict[str, Any] = _offered(REASONING)
CASES: list[tuple[str, str, str, str, str]] = [
    ("think", "", "<think>\nHm, so.\n</think>\n\nIt is.", "Hm, so.", "It is."),
    ("think", "<|im_start|>assistant\n<think>\n", "Hm.\n</think>\n\nIt is.", "Hm.", "It is."),
    ("think", "<|im_start|>assistant\n<think>\n\n</think>\n\n", "It is.", "", "It is."),
    ("think", "", "It is <think>.", "", "It is <think>."),
    ("think", "", "<think>It never ends", "It never ends", ""),
    ("deepseek_r1", "", "Hm.</think>It is.", "Hm.", "It is."),
    ("deepseek_r1", "</think>\n", "It is.", "", "It is."),
    ("mistral", "", "[THINK]Hm.[/THINK]It is.", "Hm.", "It is."),
]


@pytest.mark.parametrize(("name", "prompt", "output", "reasoning", "text"), CASES)
def test_every_cut(name: str, prompt: str, output: str, reasoning: str, text: str) -> None:
    """In one piece, in two cut anywhere, character by character; all characters are there."""
    cuts = [[output], list(output), *([output[:cut], output[cut:]] for cut in range(len(output)))]
    for pieces in cuts:
        got = read(PARSERS[name](prompt), pieces)
        assert found(got) == (text, reasoning, [])
        assert source_of(got) == output


@pytest.mark.parametrize("name", PARSERS)
@settings(max_examples=500, deadline=None)
@given(parts=st.lists(st.sampled_from(["<think>", "</think>", "[THINK]", "[/THINK]", "<", "/", "think>", "a", "\n"])))
def test_nothing_is_lost(name: str, parts: list[str]) -> None:
    """Whatever is written, every character is of a piece, and any cut gives the same."""
    output = "".join(parts)
    for prompt in ("", PARSERS[name].OPEN):
        pieces = read(PARSERS[name](prompt), [output])
        assert source_of(pieces) == output
        assert found(read(PARSERS[name](prompt), list(output))) == found(pieces)
        assert found(read(PARSERS[name](prompt), parts)) == found(pieces)


def test_a_chain() -> None:
    """Special tokens are left out, then come reasoning and calls; a call within the reasoning is none."""
    output = (
        '<s><think>I may <tool_call>{"name": "now"}</tool_call></think>Wait<|eot|>.\n<tool_call>{"name": "now"}'
        "</tool_call><|eot|>"
    )
    cuts = [[output], list(output), *([output[:cut], output[cut:]] for cut in range(len(output)))]
    for pieces in cuts:
        chain = OutputChain([LeftOut(["<s>", "<|eot|>"]), PARSERS["think"](), HermesCalls(TOOLS)])
        got = read(chain, pieces)
        assert found(got) == ("Wait.", 'I may <tool_call>{"name": "now"}</tool_call>', [("now", "{}")])


def test_a_template_shows_the_form() -> None:
    """What none shows has no parser."""
    parsers = Parsers(REASONING)
    assert parsers.of("{{ content.split('</think>') }}") is PARSERS["think"]
    assert parsers.of("[THINK]{{ x }}[/THINK]") is PARSERS["mistral"]
    assert parsers.of("{{ messages }}") is None
