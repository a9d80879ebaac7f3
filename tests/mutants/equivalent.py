"""Changes of an adapter's source that change nothing a user could see, and why."""

from __future__ import annotations

Key = tuple[str, str, str, str]
"""Package, function, old and new code, as `systematic.Change` has them."""

_COUNTS = "the counts name every modality: the default is not used"

_LLAVA: dict[tuple[str, str, str], str] = {
    ("get_dummy_mm_data", "0", "1"): _COUNTS,
    ("get_dummy_mm_data", "0", "-1"): _COUNTS,
    ("get_dummy_mm_data", "mm_counts.get('image', 0)", "mm_counts.get('image')"): _COUNTS,
}

EQUIVALENT: dict[Key, str] = {("corellm_llava", *key): reason for key, reason in _LLAVA.items()}
"""Each with its reason."""
