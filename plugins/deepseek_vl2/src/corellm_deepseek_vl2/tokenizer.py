"""The tokenizer of a DeepSeek-VL2 checkpoint, with the tokens and the beginning that the published processor adds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_PAD = "<｜▁pad▁｜>"
USER, ASSISTANT = "<|User|>", "<|Assistant|>"
_GROUNDING = ("<|ref|>", "<|/ref|>", "<|det|>", "<|/det|>", "<|grounding|>")
"""In prompts they point the model at something, in outputs they say where it is: they stay in the text."""


def load_tokenizer(path: Path) -> Any:
    """Make the tokenizer of `tokenizer.json`; every text begins with its `bos_token`.

    Args:
        path: the checkpoint's directory.

    Returns:
        A `PreTrainedTokenizerFast`.
    """
    from tokenizers import AddedToken, Tokenizer, processors
    from transformers import PreTrainedTokenizerFast

    stated = PreTrainedTokenizerFast.from_pretrained(path)
    layout = json.loads(stated.backend_tokenizer.to_str())
    for token in layout["added_tokens"]:
        token["special"] = token["special"] and token["content"] not in _GROUNDING
    backend = Tokenizer.from_str(json.dumps(layout))
    known = backend.get_vocab()
    special = [token for token in (stated.pad_token or _PAD, image_token(path), USER, ASSISTANT) if token not in known]
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    backend.add_tokens([AddedToken(t, normalized=False, special=False) for t in _GROUNDING if t not in known])
    bos = stated.bos_token
    if backend.encode("a").ids[:1] != [backend.token_to_id(bos)]:
        backend.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, backend.token_to_id(bos))]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=bos,
        eos_token=stated.eos_token,
        pad_token=stated.pad_token or _PAD,
        chat_template=stated.chat_template,
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
    )


def image_token(path: Path) -> str:
    """Return the text of the token that stands for an image."""
    file = path / "processor_config.json"
    settings = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return str(settings.get("image_token", "<image>"))
