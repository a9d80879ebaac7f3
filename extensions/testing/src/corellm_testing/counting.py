"""Which hook is at fault where an item has another number of embeddings than its placeholder has room for.

The reference says how many tokens an item has; the hooks alone only contradict each other.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from corellm.config import EngineConfig
from corellm.engine.llm_engine import LLMEngine
from corellm.errors import EmbeddingCountError
from corellm_testing.reference import Reference, token_ids_of
from corellm_testing.subject import Subject

COUNTING = ("get_prompt_updates", "get_multimodal_embeddings")
"""The hooks that count an item's embeddings."""
_MAKE_ROOM = "make an item's placeholder as long, and of the same tokens, as the Hugging Face processor makes it"
_SELECT = (
    "say which tokens take embeddings with PromptUpdateDetails.select_token_id: separators and ends of rows take none"
)
_EMBED = "give one embedding, as wide as the decoder's, for each token that takes one, and none for padding"
_BOTH = "count an item's tokens in get_prompt_updates as get_multimodal_embeddings makes embeddings"


def are_contradictory(error: Exception) -> bool:
    """Whether an error says that the two hooks count the embeddings of an item differently."""
    return isinstance(error, EmbeddingCountError) and all(hook in str(error) for hook in COUNTING)


def miscounting_hook(subject: Subject, modality: str) -> tuple[str, str]:
    """Return the hook that counts the embeddings of small items wrong, and what to change in it.

    Both hooks where these items do not tell.
    """
    for seed in range(0, 42, 7):
        if found := _miscounting(subject, modality, subject.item(modality, seed)):
            return found
    return " and ".join(COUNTING), _BOTH


def _miscounting(subject: Subject, modality: str, item: Any) -> tuple[str, str] | None:
    """Return the same for one item; None where it does not tell.

    `get_prompt_updates` where the reference makes other tokens of the prompt, or as many embeddings come as there are
    tokens of the kind that takes most of them.
    """
    text, media = subject.prompt([(modality, item), "What?"])
    processed = subject.process(text, media)
    (feature,) = processed.features
    (embeddings,) = subject.embed([feature])
    room, count = feature.placeholder.num_embeds, len(embeddings)
    if processed.token_ids != token_ids_of(subject.reference.process(text, media, {})):
        return "get_prompt_updates", _MAKE_ROOM
    mask = subject.embed_mask(processed).tolist()
    taking = Counter(token for token, takes in zip(processed.token_ids, mask, strict=True) if takes)
    if count != room and count == taking.most_common(1)[0][1]:
        return "get_prompt_updates", _SELECT
    if count != room:
        return "get_multimodal_embeddings", _EMBED
    if embeddings.shape[-1] != subject.embedding_width:
        return "get_multimodal_embeddings or get_multimodal_embedding_width", _EMBED
    return None


def miscounting_hook_at_load(checkpoint: Path, reference: Reference, modality: str) -> tuple[str, str]:
    """Return the same as `miscounting_hook` of a checkpoint that does not load, because its dummies do not fit."""
    config = EngineConfig.from_kwargs(model=str(checkpoint), dtype="float32")
    engine = LLMEngine(config, check_encoders=False)
    try:
        return miscounting_hook(Subject(checkpoint, reference, engine), modality)
    finally:
        engine.shutdown()
