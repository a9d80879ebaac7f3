"""Embeddings of encoders of many kinds: each prompt of a batch equals transformers' forward pass on it alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import torch
import transformers

from corellm import LLM
from corellm.errors import CheckpointError, ConfigError, InvalidParameterError, PromptTooLongError
from corellm_pooling.engine import PoolingEngine
from corellm_pooling.text_encoders.forward import Packed, Padded
from corellm_pooling.text_encoders.runner import TextEncoderRunner
from extensions.pooling.tests.text_encoders.checkpoints import CLOSE, TEXTS, alone, make_tiny_encoder

_DEBERTA = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "type_vocab_size": 0}
_GEMMA = {
    "use_bidirectional_attention": True,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "sliding_window": 8,
    "layer_types": ["sliding_attention", "full_attention"],
}
_MODERN = {"local_attention": 8, "global_attn_every_n_layers": 2, "num_hidden_layers": 3}
KINDS: dict[str, tuple[dict[str, Any], type]] = {
    "BertModel": ({"type_vocab_size": 2}, Packed),
    "BertForMaskedLM": ({"type_vocab_size": 2}, Packed),
    "RobertaModel": ({"pad_token_id": 1}, Packed),
    "XLMRobertaForMaskedLM": ({"pad_token_id": 2}, Packed),
    "DistilBertModel": ({"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48}, Packed),
    "ElectraModel": ({"embedding_size": 16}, Packed),
    "AlbertModel": ({"embedding_size": 16}, Packed),
    "ModernBertModel": (_MODERN, Packed),
    "EuroBertModel": ({"num_key_value_heads": 2}, Packed),
    "NomicBertModel": ({"type_vocab_size": 2}, Packed),
    "Gemma3TextModel": (_GEMMA, Packed),
    "MPNetModel": ({"pad_token_id": 1}, Padded),
    "DebertaV2Model": (_DEBERTA, Padded),
}
"""Positions from zero and after padding's, relative ones, windows, shared heads, embeddings of another width."""
OPTIONS: dict[str, Any] = {"dtype": "float32", "max_num_seqs": 8}


def worker(llm: LLM) -> TextEncoderRunner:
    """The worker of an encoder."""
    return cast(TextEncoderRunner, cast(PoolingEngine, llm.engine).runner)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # transformers' DeBERTa, when it is imported
@pytest.mark.parametrize("architecture", KINDS)
def test_embeddings_equal_transformers(architecture: str, tmp_path: Path) -> None:
    """The mean of the hidden states, normalised; by the forward pass that is expected."""
    config, kind = KINDS[architecture]
    make_tiny_encoder(tmp_path, architecture, **config)
    reference = transformers.AutoModel.from_pretrained(tmp_path, dtype=torch.float32).eval()
    with LLM(tmp_path, **OPTIONS) as llm:
        assert type(worker(llm)._encode) is kind
        outputs = llm.embed([*TEXTS, " ".join(TEXTS)], use_tqdm=False)
        (tokens,) = llm.encode(TEXTS[0], pooling_task="token_embed", use_tqdm=False)
    for output in outputs:
        expected = torch.nn.functional.normalize(alone(reference, output.prompt_token_ids).mean(0), dim=-1)
        torch.testing.assert_close(torch.as_tensor(output.outputs.embedding), expected, **CLOSE)
    expected = torch.nn.functional.normalize(alone(reference, tokens.prompt_token_ids), dim=-1)
    torch.testing.assert_close(torch.as_tensor(tokens.outputs.data), expected, **CLOSE)


@pytest.mark.parametrize("architecture", ["BertModel", "MPNetModel"])
def test_bfloat16(architecture: str, tmp_path: Path) -> None:
    """Loads by the same forward pass; embeddings keep their direction."""
    config, kind = KINDS[architecture]
    make_tiny_encoder(tmp_path, architecture, **config)
    with LLM(tmp_path, **OPTIONS) as llm:
        expected = torch.tensor([output.outputs.embedding for output in llm.embed(list(TEXTS), use_tqdm=False)])
    with LLM(tmp_path, dtype="bfloat16") as llm:
        assert type(worker(llm)._encode) is kind
        found = torch.tensor([output.outputs.embedding for output in llm.embed(list(TEXTS), use_tqdm=False)])
    assert ((found * expected).sum(-1) > 0.995).all()


def test_a_head_is_left_out_for_embeddings(tmp_path: Path) -> None:
    """The encoder of a checkpoint for classes embeds."""
    make_tiny_encoder(tmp_path, "BertForSequenceClassification", type_vocab_size=2)
    reference = transformers.AutoModel.from_pretrained(tmp_path, dtype=torch.float32).eval()
    with LLM(tmp_path, convert="embed", pooler_config={"pooling_type": "CLS"}, **OPTIONS) as llm:
        (output,) = llm.embed(TEXTS[0], normalize=False, use_tqdm=False)
    expected = alone(reference, output.prompt_token_ids)[0]
    torch.testing.assert_close(torch.as_tensor(output.outputs.embedding), expected, **CLOSE)


def test_prompts_run_whole(tmp_path: Path) -> None:
    """A step takes whole prompts only, and gives the blocks back; a prompt that is cut keeps its last token."""
    make_tiny_encoder(tmp_path, "BertModel", type_vocab_size=2)
    with LLM(tmp_path, dtype="float32", max_num_seqs=2, max_num_batched_tokens=70) as llm:
        many = llm.embed([*TEXTS] * 3, use_tqdm=False)
        again = [llm.embed(text, use_tqdm=False)[0] for text in TEXTS]
        for output, expected in zip(many, again * 3, strict=True):
            torch.testing.assert_close(
                torch.as_tensor(output.outputs.embedding), torch.as_tensor(expected.outputs.embedding), **CLOSE
            )
        assert llm.engine.scheduler.blocks.num_free_blocks == 2
        (cut,) = llm.embed(" ".join(TEXTS * 4), truncate_prompt_tokens=-1, use_tqdm=False)
        tokenizer = llm.get_tokenizer()
        assert cut.prompt_token_ids == tokenizer(" ".join(TEXTS * 4), truncation=True, max_length=66)["input_ids"]
        with pytest.raises(PromptTooLongError, match="66"):
            llm.embed(" ".join(TEXTS * 4), use_tqdm=False)


def test_positions_after_that_of_padding_are_fewer(tmp_path: Path) -> None:
    """Roberta's first position is the one after padding's: 66 positions hold 64 tokens."""
    make_tiny_encoder(tmp_path, "RobertaModel", pad_token_id=1)
    with LLM(tmp_path, **OPTIONS) as llm:
        (output,) = llm.embed([list(range(5, 69))], use_tqdm=False)
        assert len(output.prompt_token_ids) == 64
        assert llm.engine.max_model_len == 64
    with pytest.raises(ConfigError, match=r"max_model_len=65 .* 64 positions"):
        LLM(tmp_path, max_model_len=65, **OPTIONS)


def test_what_cannot_be_right_is_refused(tmp_path: Path) -> None:
    """A model that mixes all tokens of a row, padding too; classes without a head; text."""
    make_tiny_encoder(tmp_path / "mixing", "FNetModel", type_vocab_size=2)
    with pytest.raises(CheckpointError, match=r"FNetModel .* batch"):
        LLM(tmp_path / "mixing", **OPTIONS)
    path = make_tiny_encoder(tmp_path / "bert", "BertModel", type_vocab_size=2)
    with pytest.raises(ConfigError, match=r"BertModel .*convert='embed'"):
        LLM(path, convert="classify", **OPTIONS)
    with LLM(path, **OPTIONS) as llm:
        with pytest.raises(InvalidParameterError, match="task 'generate'"):
            llm.generate("Why?", use_tqdm=False)
        with pytest.raises(InvalidParameterError, match=r"dimensions=33, .* 32"):
            llm.embed("Why?", dimensions=33, use_tqdm=False)
