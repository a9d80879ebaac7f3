"""Checks that a hook's answer is of the kind the contract asks for: a forgotten `return` is named at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from corellm.errors import ContractError

_KINDS: dict[str, tuple[type, str]] = {
    "get_supported_mm_limits": (Mapping, "{modality: most items per prompt or None}"),
    "get_dummy_text": (str, "prompt text"),
    "get_dummy_mm_data": (Mapping, "{modality: media}"),
    "call_hf_processor": (Mapping, "the processor's BatchFeature"),
    "get_mm_fields_config": (Mapping, "{tensor name: MultiModalFieldConfig}"),
    "get_prompt_updates": (Sequence, "a list of PromptReplacement / PromptInsertion"),
    "apply_hf_processor_tokens_only": (Sequence, "a list of token ids"),
}


def ask(hooks: Any, name: str, **arguments: Any) -> Any:
    """Call a hook and check the kind of its answer.

    Args:
        hooks: a model's hook callers.
        name: of the hook.
        arguments: all of the hook's.

    Raises:
        ContractError: the answer is of another kind.
    """
    answer = getattr(hooks, name)(**arguments)
    kind, meaning = _KINDS[name]
    if not isinstance(answer, kind):
        forgotten = " (a forgotten return?)" if answer is None else ""
        raise ContractError(f"{name} returned {answer!r:.80}{forgotten}; it must return {meaning}")
    return answer
