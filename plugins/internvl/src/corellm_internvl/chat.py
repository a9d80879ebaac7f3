"""InternVL's own prompt of a conversation: ChatML with a system message, in the two forms that were published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from corellm.errors import PromptError
from corellm.hookspecs import ChatPrompt
from corellm.multimodal import collect_media
from corellm_internvl.tokenizer import IMAGE

IM_END = "<|im_end|>"
PLACEHOLDER = f"{IMAGE}\n"
_SYSTEM = "你是由上海人工智能实验室联合商汤科技开发的书生多模态大模型，英文名叫InternVL, 是一个有用无害的人工智能助手。"
_SYSTEM_2_5 = (
    "你是书生·万象，英文名是InternVL，是由上海人工智能实验室、清华大学及多家合作单位联合开发的多模态大语言模型。"
)
_FORMS = {
    "Hermes-2": (IM_END, _SYSTEM),
    "internlm2-chat": (IM_END, _SYSTEM),
    "internvl2_5": (f"{IM_END}\n", _SYSTEM_2_5),
}
"""`{template: (what ends a message, system message)}`, by the names in `config.json`."""
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


def make_context(
    messages: Sequence[Mapping[str, Any]], template: str | None, system: str | None, add_generation_prompt: bool
) -> ChatPrompt | None:
    """Make the prompt; None where the template's form is not known.

    Args:
        messages: normalized messages.
        template: the form's name.
        system: what stands for a conversation's system message where it has none; None for the form's own.
        add_generation_prompt: whether to end with the start of the assistant's turn.

    Raises:
        PromptError: a role the family does not have.
    """
    if template not in _FORMS:
        return None
    end, own = _FORMS[template]
    prompt = ""
    if not messages or _ROLES.get(messages[0]["role"]) != "system":
        prompt = f"<|im_start|>system\n{own if system is None else system}{end}"
    for message in messages:
        role = _ROLES.get(message["role"])
        if role is None:
            raise PromptError(f"InternVL knows no messages of role {message['role']!r}; it knows {', '.join(_ROLES)}")
        parts = (part["text"] if part["type"] == "text" else PLACEHOLDER for part in message["content"])
        prompt += f"<|im_start|>{role}\n{''.join(parts)}{end}"
    return ChatPrompt(prompt + ("<|im_start|>assistant\n" if add_generation_prompt else ""), collect_media(messages))
