"""Prompt updates: how each item's placeholder gets into the prompt.

`updates` has what an adapter declares, `resolution` turns a declaration into token ids for one item, `binding` finds
each item's place in a prompt, `mismatch` explains prompts that do not match the items. None imports torch.
"""

from corellm.multimodal.prompt_updates.binding import apply_prompt_updates, replaced_targets, targets_without
from corellm.multimodal.prompt_updates.resolution import NoEmbeddingError
from corellm.multimodal.prompt_updates.updates import (
    PromptIndexTarget,
    PromptIndexTargets,
    PromptInsertion,
    PromptReplacement,
    PromptSeq,
    PromptUpdate,
    PromptUpdateDetails,
)

__all__ = [
    "NoEmbeddingError",
    "PromptIndexTarget",
    "PromptIndexTargets",
    "PromptInsertion",
    "PromptReplacement",
    "PromptSeq",
    "PromptUpdate",
    "PromptUpdateDetails",
    "apply_prompt_updates",
    "replaced_targets",
    "targets_without",
]
