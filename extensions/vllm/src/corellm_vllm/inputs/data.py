"""An older place of the forms of a prompt."""

from __future__ import annotations

from corellm_vllm.absent.exports import exports

_HOMES = {
    "PromptType": "corellm.prompts",
    "TextPrompt": "corellm.prompts",
    "TokensPrompt": "corellm.prompts",
}
__all__ = sorted(_HOMES)
__getattr__ = exports(__name__, _HOMES)
