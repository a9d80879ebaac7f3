"""Mistakes about which tokens see each other."""

from __future__ import annotations

from extensions.testing.tests.mutants.mutant import GEMMA3, LLAVA, QWEN2, Mutant

_VISIBLE = "test_tokens_see_what_they_see_in_the_reference"
_HOOK = "get_bidirectional_spans"
_RETURNED = "        return embedded_spans(mm_features)\n"


def _spans(wrong: str, code: str) -> Mutant:
    """Gemma 3 with other spans."""
    return GEMMA3.edited(wrong, _VISIBLE, _HOOK, old=_RETURNED, new=f"        return {code}\n")


MUTANTS = (
    _spans("an image's tokens are treated causally", "[]"),
    _spans("the first image's tokens alone see each other", "embedded_spans(mm_features)[:1]"),
    _spans("the markers around an image see it whole, too", "[(a - 1, b + 1) for a, b in embedded_spans(mm_features)]"),
    _spans("the last token of an image is not seen", "[(a, b - 1) for a, b in embedded_spans(mm_features)]"),
    _spans(
        "all images see each other",
        "[(embedded_spans(mm_features)[0][0], embedded_spans(mm_features)[-1][1])] if mm_features else []",
    ),
    LLAVA.given(
        "an image's tokens see each other, in a causal model",
        _VISIBLE,
        _HOOK,
        """
        @hookimpl
        def get_bidirectional_spans(self, mm_features):
            from corellm.multimodal import embedded_spans

            return embedded_spans(mm_features)
        """,
    ),
    QWEN2.given(
        "a prompt's tokens all see each other",
        _VISIBLE,
        _HOOK,
        """
        @hookimpl
        def get_bidirectional_spans(self, token_ids):
            return [(0, len(token_ids))]
        """,
    ),
)
