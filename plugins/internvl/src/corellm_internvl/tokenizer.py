"""The checkpoint's tokenizer, with a token for an image as users write it.

In the published code `<image>` is replaced in the text, before it is tokenized. Here it is a token of its own, behind
the vocabulary: it never reaches the model, because an image's tokens take its place.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from corellm.errors import CheckpointError

IMAGE = "<image>"
IMAGE_START, IMAGE_END, IMAGE_CONTEXT = "<img>", "</img>", "<IMG_CONTEXT>"


def load_tokenizer(path: Path) -> Any:
    """Return the tokenizer.

    Raises:
        CheckpointError: it has no tokens for images.
    """
    from tokenizers import AddedToken
    from transformers import AutoTokenizer, PretrainedConfig

    # transformers cannot read the checkpoint's own configuration; the tokenizer's files name its class
    tokenizer = AutoTokenizer.from_pretrained(path, config=PretrainedConfig(), trust_remote_code=False)
    vocabulary = tokenizer.get_vocab()
    if missing := [token for token in (IMAGE_START, IMAGE_CONTEXT, IMAGE_END) if token not in vocabulary]:
        raise CheckpointError(
            f"{path}: the tokenizer lacks {', '.join(missing)}, which every InternVL has; download all of its files"
        )
    tokenizer.add_tokens([AddedToken(IMAGE, normalized=False, special=True)], special_tokens=True)
    return tokenizer
