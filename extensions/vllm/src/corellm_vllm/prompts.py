"""Prompts of scripts written for vLLM, as corellm takes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from corellm.errors import PromptError
from corellm.prompts import split_prompts
from corellm_vllm.absent.names import PROMPT_KEYS
from corellm_vllm.absent.table import check_absent


def taken(prompt: Any) -> Any:
    """Return a prompt without keys that corellm lacks.

    Raises:
        PromptError: one of them asks for something.
    """
    if not isinstance(prompt, Mapping) or PROMPT_KEYS.keys().isdisjoint(prompt):
        return prompt
    return check_absent("a prompt", prompt, PROMPT_KEYS, PromptError)


def each_taken(prompts: Any) -> Any:
    """Return one prompt, or a list of them, in the same way."""
    if isinstance(prompts, Mapping):
        return taken(prompts)
    listed = split_prompts(prompts)
    return [taken(prompt) for prompt in listed] if any(isinstance(prompt, Mapping) for prompt in listed) else prompts
