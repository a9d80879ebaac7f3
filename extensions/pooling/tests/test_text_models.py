"""Text-only models without a plugin, converted or with heads of their own: equal to transformers in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from sentence_transformers import CrossEncoder
from tokenizers import processors

from corellm import LLM
from corellm.errors import CheckpointError
from corellm_testing.tiny_text import make_tiny_checkpoint
from extensions.pooling.tests.test_embed import CLOSE, TEXTS, normalized

SIZES: dict[str, Any] = {"num_key_value_heads": 2, "head_dim": 16}
OPTIONS: dict[str, Any] = {"dtype": "float32", "max_model_len": 128, "num_kv_blocks": 64}


def last_hidden(model: Any, token_ids: list[int]) -> torch.Tensor:
    """The hidden state of the last token."""
    with torch.inference_mode():
        hidden: torch.Tensor = model(input_ids=torch.tensor([token_ids])).last_hidden_state[0, -1]
    return hidden


@pytest.mark.parametrize(
    ("architecture", "sizes"), [("Qwen3ForCausalLM", SIZES), ("Gemma2ForCausalLM", SIZES), ("OPTForCausalLM", {})]
)
def test_embeddings(architecture: str, sizes: dict[str, Any], tmp_path: Path) -> None:
    """Embeddings are those of the last token, in one batch."""
    make_tiny_checkpoint(tmp_path, architecture=architecture, **sizes)
    classes = getattr(transformers, architecture)  # Gemma 2 caps its scores with eager attention only
    whole = classes.from_pretrained(tmp_path, dtype=torch.float32, attn_implementation="eager").eval()
    with LLM(tmp_path, convert="embed", **OPTIONS) as llm:
        outputs = llm.embed(list(TEXTS))
    for output in outputs:
        expected = normalized(last_hidden(whole.get_decoder(), output.prompt_token_ids))
        torch.testing.assert_close(torch.as_tensor(output.outputs.embedding), expected, **CLOSE)


def test_a_base_model_embeds(tmp_path: Path) -> None:
    """`Qwen3Model` is one by its name, and served by what serves `Qwen3ForCausalLM`."""
    make_tiny_checkpoint(tmp_path / "whole", architecture="Qwen3ForCausalLM", **SIZES)
    base = transformers.AutoModel.from_pretrained(tmp_path / "whole", dtype=torch.float32).eval()
    base.save_pretrained(tmp_path / "base")
    transformers.AutoTokenizer.from_pretrained(tmp_path / "whole").save_pretrained(tmp_path / "base")
    with LLM(tmp_path / "base", **OPTIONS) as llm:
        (output,) = llm.embed("One two three")
    expected = normalized(last_hidden(base, output.prompt_token_ids))
    torch.testing.assert_close(torch.as_tensor(output.outputs.embedding), expected, **CLOSE)


def test_a_classifier(tmp_path: Path) -> None:
    """Equals transformers' own class on the same weights."""
    make_tiny_checkpoint(tmp_path / "whole", architecture="LlamaForCausalLM")
    classes: Any = transformers.LlamaForSequenceClassification
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = classes.from_pretrained(tmp_path / "whole", dtype=torch.float32, num_labels=3).eval()
        model.score.weight.data.normal_()
    model.save_pretrained(tmp_path / "own")
    transformers.AutoTokenizer.from_pretrained(tmp_path / "whole").save_pretrained(tmp_path / "own")
    with LLM(tmp_path / "own", **OPTIONS) as llm:
        outputs = llm.classify(list(TEXTS))
    for output in outputs:
        with torch.inference_mode():
            expected = model(input_ids=torch.tensor([output.prompt_token_ids])).logits[0].softmax(-1)
        torch.testing.assert_close(torch.as_tensor(output.outputs.probs), expected, **CLOSE)


def write_reader(path: Path, num_labels: int, pad_token: str) -> Any:
    """Write a classifier whose tokenizer ends every text, and every pair, with `</s>`; returns transformers' model."""
    make_tiny_checkpoint(path / "whole", architecture="LlamaForCausalLM")
    tokenizer = transformers.AutoTokenizer.from_pretrained(path / "whole")
    end = (tokenizer.eos_token, tokenizer.eos_token_id)
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A $B </s>", special_tokens=[end]
    )
    tokenizer.pad_token, tokenizer.chat_template = pad_token, None
    classes: Any = transformers.LlamaForSequenceClassification
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = classes.from_pretrained(
            path / "whole", dtype=torch.float32, num_labels=num_labels, pad_token_id=tokenizer.pad_token_id
        ).eval()
        model.score.weight.data.normal_()
    model.save_pretrained(path / "own")
    tokenizer.save_pretrained(path / "own")
    return model


@pytest.mark.parametrize("pad_token", ["</s>", "<pad>"])
def test_the_last_token_that_is_not_padding(pad_token: str, tmp_path: Path) -> None:
    """Where padding is also the end of a text, a head was trained on the token before; elsewhere on the end.

    Equal to transformers' class, also of prompts that came from the cache but for their end, and as `pooling_type`
    says, if it does.
    """
    model = write_reader(tmp_path, 3, pad_token)
    prompts = [*TEXTS, " ".join(TEXTS), "one two three four five six seven eight", [5, 6, 1, 1], [1, 1]]
    with LLM(tmp_path / "own", block_size=4, **OPTIONS) as llm:
        outputs = [*llm.classify(prompts), *llm.classify(prompts)]
        cached = sum(output.num_cached_tokens for output in outputs)
    with LLM(tmp_path / "own", pooler_config={"pooling_type": "LAST"}, **OPTIONS) as llm:
        (last,) = llm.classify(TEXTS[0])
    assert outputs[0].prompt_token_ids[-1] == 1
    assert (cached > 0) is (pad_token == "<pad>")
    for output in outputs:
        with torch.inference_mode():
            expected = model(input_ids=torch.tensor([output.prompt_token_ids])).logits[0].softmax(-1)
        torch.testing.assert_close(torch.as_tensor(output.outputs.probs), expected, **CLOSE)
    is_same = torch.allclose(torch.tensor(last.outputs.probs), torch.tensor(outputs[0].outputs.probs), **CLOSE)
    assert is_same is (pad_token == "<pad>")


@pytest.mark.parametrize("pad_token", ["</s>", "<pad>"])
def test_a_decoder_as_cross_encoder(pad_token: str, tmp_path: Path) -> None:
    """Scores are those of sentence-transformers, which reads padded batches with transformers' class."""
    write_reader(tmp_path, 1, pad_token)
    documents = [" " + text for text in TEXTS]
    model = CrossEncoder(str(tmp_path / "own"), device="cpu", model_kwargs={"dtype": torch.float32})
    expected = model.predict([("What is red?", text) for text in documents], show_progress_bar=False)
    with LLM(tmp_path / "own", **OPTIONS) as llm:
        found = [output.outputs.score for output in llm.score("What is red?", documents)]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


QWEN3_PREFIX = "<|im_start|>system\nYes or no?<|im_end|>\n<|im_start|>user\n"
QWEN3_SUFFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


@pytest.mark.parametrize("tied", [True, False])
def test_qwen3_reranker_in_the_usual_form(tied: bool, tmp_path: Path) -> None:
    """Loads with the overrides that its users have, and scores as its model card does: "yes" among "no" and "yes".

    The card takes the softmax of the two tokens' logits behind the last token of a prompt with its own tokens.
    """
    make_tiny_checkpoint(tmp_path, architecture="Qwen3ForCausalLM", tie_word_embeddings=tied, vocab_size=410, **SIZES)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    tokenizer.add_tokens(["no", "yes"])
    tokenizer.save_pretrained(tmp_path)
    model = transformers.Qwen3ForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    no, yes = (tokenizer.convert_tokens_to_ids(token) for token in ("no", "yes"))
    assert tokenizer.unk_token_id not in (no, yes)
    overrides = {
        "architectures": ["Qwen3ForSequenceClassification"],
        "classifier_from_token": ["no", "yes"],
        "is_original_qwen3_reranker": True,
    }
    query = f"{QWEN3_PREFIX}<Instruct>: Find it\n<Query>: What is red?\n"
    documents = [f"<Document>: {text}{QWEN3_SUFFIX}" for text in TEXTS]
    with LLM(tmp_path, runner="pooling", hf_overrides=overrides, **{**OPTIONS, "max_model_len": 256}) as llm:
        assert llm.engine.pooler.tasks == ("classify", "token_classify", "score")
        outputs = llm.score(query, documents)
    for output, document in zip(outputs, documents, strict=True):
        ids = tokenizer(query + document)["input_ids"]
        assert output.prompt_token_ids == ids
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([ids])).logits[0, -1]
        expected = torch.stack([logits[no], logits[yes]]).log_softmax(0)[1].exp().item()
        assert output.outputs.score == pytest.approx(expected, abs=1e-5)


def test_a_decoder_that_needs_token_ids_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for generation: a pooling model asks for no logits, and is checked all the same."""
    make_tiny_checkpoint(tmp_path, architecture="LlamaForCausalLM")
    forward = transformers.LlamaModel.forward

    def with_token_ids(self: Any, input_ids: Any = None, **kwargs: Any) -> Any:
        output = forward(self, input_ids=input_ids, **kwargs)
        if input_ids is not None:
            output.last_hidden_state = output.last_hidden_state + 1
        return output

    monkeypatch.setattr(transformers.LlamaModel, "forward", with_token_ids)
    for options in ({}, {"convert": "embed"}):
        with pytest.raises(CheckpointError, match="more of a token"):
            LLM(tmp_path, **options, **OPTIONS)
