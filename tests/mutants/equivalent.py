"""Changes of an adapter's source that change nothing a user could see, and why."""

from __future__ import annotations

Key = tuple[str, str, str, str]
"""Package, function, old and new code, as `systematic.Change` has them."""

_SPEED = "fewer layers of the tower are left out, or none: no embedding depends on it, only time"
_ONE_STACK = "the first of one"
_COUNTS = "the counts name every modality: the default is not used"

_LLAVA: dict[tuple[str, str, str], str] = {
    (
        "load_model",
        "def load_model",
        "left out",
    ): _SPEED,
    (
        "load_model",
        "_skip_layers(model.model.vision_tower, [chosen] if isinstance(chosen, int) else chosen)",
        "left out",
    ): _SPEED,
    (
        "_skip_layers",
        "for layer in stacks[0][max((index % (count + 1) for index in chosen)):] if len(stacks) ==…",
        "left out",
    ): _SPEED,
    (
        "_skip_layers",
        "[module for module in tower.modules() if isinstance(module, nn.ModuleList) and len(module…",
        "[module for module in tower.modules()]",
    ): _SPEED,
    (
        "_skip_layers",
        "len(module) == count",
        "len(module) != count",
    ): _SPEED,
    (
        "_skip_layers",
        "layer.forward = _unchanged",
        "left out",
    ): _SPEED,
    (
        "_skip_layers",
        "index % (count + 1)",
        "index + (count + 1)",
    ): _SPEED,
    (
        "_skip_layers",
        "1",
        "2",
    ): _SPEED,
    (
        "_skip_layers",
        "len(stacks) == 1",
        "len(stacks) != 1",
    ): _SPEED,
    (
        "_skip_layers",
        "1",
        "0",
    ): _SPEED,
    ("_skip_layers", "0", "-1"): _ONE_STACK,
    ("get_dummy_mm_data", "0", "1"): _COUNTS,
    ("get_dummy_mm_data", "0", "-1"): _COUNTS,
    ("get_dummy_mm_data", "mm_counts.get('image', 0)", "mm_counts.get('image')"): _COUNTS,
}

EQUIVALENT: dict[Key, str] = {("corellm_llava", *key): reason for key, reason in _LLAVA.items()}
"""Each with its reason."""
