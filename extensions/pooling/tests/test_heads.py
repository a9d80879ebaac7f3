"""Classes, rewards, rerankers, sentence-transformers' heads: equal to transformers, or to torch on its output."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import save_file

from corellm import LLM
from corellm.errors import CheckpointError, ConfigError
from corellm_pooling.building import activation_of
from extensions.pooling.tests.checkpoints import WIDTH, hidden_states, random_tensor, rewritten
from extensions.pooling.tests.test_settings import write_modules
from tests.fixtures import random_image

TEXT = "A red circle is above a blue square"
CLOSE = {"rtol": 0, "atol": 1e-5}
SMALL: dict[str, Any] = {"dtype": "float32", "max_model_len": 256, "num_kv_blocks": 64}


def data(outputs: Any) -> torch.Tensor:
    """The first output's array."""
    return torch.from_numpy(outputs[0].outputs.data)


def test_classification_equals_transformers(tiny_llava: Path, tmp_path: Path) -> None:
    """A checkpoint with a score head: the probabilities of transformers' own class for its text model."""
    score = random_tensor(3, WIDTH)
    config = {"id2label": {str(i): f"label {i}" for i in range(3)}}
    path = rewritten(
        tiny_llava,
        tmp_path,
        architecture="LlavaForSequenceClassification",
        heads={"score.weight": score},
        config=config,
    )
    with LLM(path, **SMALL) as llm:
        (output,) = llm.classify(TEXT, use_tqdm=False)
        (logits,) = llm.classify(TEXT, use_activation=False, use_tqdm=False)
        per_token = data(llm.encode(TEXT, pooling_task="token_classify", use_tqdm=False))
        assert "score" not in llm.engine.pooler.tasks

    full = transformers.LlavaForConditionalGeneration.from_pretrained(tiny_llava, dtype=torch.float32)
    full.config.text_config.num_labels = 3
    reference = transformers.LlamaForSequenceClassification(full.config.text_config).eval()
    reference.model.load_state_dict(full.get_decoder().state_dict())
    reference.score.weight.data.copy_(score)
    with torch.inference_mode():
        wanted = reference(input_ids=torch.tensor([output.prompt_token_ids])).logits[0]
    assert output.outputs is not None
    assert logits.outputs is not None
    torch.testing.assert_close(torch.tensor(logits.outputs.probs), wanted, **CLOSE)
    torch.testing.assert_close(torch.tensor(output.outputs.probs), wanted.softmax(dim=-1), **CLOSE)
    torch.testing.assert_close(per_token[-1], wanted.softmax(dim=-1), **CLOSE)


def test_a_base_model_embeds_as_the_whole_one(tiny_llava: Path, tmp_path: Path) -> None:
    """A checkpoint of the bare model (`LlavaModel`) is served by the family's plugin, and gives embeddings."""
    full = transformers.LlavaForConditionalGeneration.from_pretrained(tiny_llava, dtype=torch.float32)
    path = rewritten(tiny_llava, tmp_path, heads={})
    full.model.save_pretrained(path)
    assert json.loads((path / "config.json").read_text())["architectures"] == ["LlavaModel"]
    with LLM(path, **SMALL) as llm:
        (output,) = llm.embed(TEXT, normalize=False, use_tqdm=False)
    assert output.outputs is not None
    wanted = hidden_states(tiny_llava, output.prompt_token_ids)[-1]
    torch.testing.assert_close(torch.tensor(output.outputs.embedding), wanted, **CLOSE)


@pytest.mark.parametrize("heads", ["v_head", "score"])
def test_rewards_of_every_token(tiny_llava: Path, tmp_path: Path, heads: str) -> None:
    """A reward model's head on every token: one linear layer (InternLM2) or two with ReLU between (Qwen2)."""
    one, two, bias = random_tensor(32, WIDTH, seed=1), random_tensor(1, 32, seed=2), random_tensor(32, seed=3)
    tensors = {"v_head.weight": random_tensor(1, WIDTH)}
    if heads == "score":
        tensors = {"score.0.weight": one, "score.0.bias": bias, "score.2.weight": two, "score.2.bias": random_tensor(1)}
    path = rewritten(tiny_llava, tmp_path, architecture="LlavaForRewardModel", heads=tensors)
    with LLM(path, **SMALL) as llm:
        outputs = llm.reward([TEXT], use_tqdm=False)
        same = llm.encode([TEXT], pooling_task="token_classify", use_tqdm=False)
        llm.engine.scheduler.max_num_batched_tokens = 3
        cut = llm.reward([TEXT], use_tqdm=False)
    hidden = hidden_states(tiny_llava, outputs[0].prompt_token_ids)
    if heads == "score":
        wanted = (hidden @ one.T + bias).relu() @ two.T + tensors["score.2.bias"]
    else:
        wanted = hidden @ tensors["v_head.weight"].T
    for found in (outputs, same, cut):
        torch.testing.assert_close(data(found), wanted, **CLOSE)


def test_rewards_of_steps(tiny_llava: Path, tmp_path: Path) -> None:
    """A process reward model: probabilities at step tags alone, the same in one step and in many."""
    score = random_tensor(2, WIDTH)
    path = rewritten(tiny_llava, tmp_path, architecture="LlavaForProcessRewardModel", heads={"score.weight": score})
    prompt = [1, 9, 20, 9, 30, 31, 32, 9, 40]
    with LLM(path, pooler_config={"step_tag_id": 9}, **SMALL) as llm:
        steps = data(llm.reward([prompt], use_tqdm=False))
        llm.engine.scheduler.max_num_batched_tokens = 2
        cut = data(llm.reward([prompt], use_tqdm=False))
    wanted = (hidden_states(tiny_llava, prompt)[[1, 3, 7]] @ score.T).softmax(dim=-1)
    torch.testing.assert_close(steps, wanted, **CLOSE)
    torch.testing.assert_close(cut, wanted, **CLOSE)


@pytest.fixture(scope="module")
def lm_logits(tiny_llava: Path) -> Any:
    """From token ids to transformers' logits of the next token."""
    model = transformers.LlavaForConditionalGeneration.from_pretrained(tiny_llava, dtype=torch.float32).eval()

    def logits(token_ids: list[int]) -> torch.Tensor:
        with torch.inference_mode():
            found: torch.Tensor = model(input_ids=torch.tensor([token_ids])).logits[0, -1]
        return found

    return logits


def test_reranker_by_two_way_softmax(tiny_llava: Path, lm_logits: Any) -> None:
    """Scores are the probability of "true" among two tokens' logits; ranking and images work; nothing is written."""
    overrides = {"classifier_from_token": [300, 301], "method": "from_2_way_softmax"}
    documents = ["A red circle", "one two three", "Is it left or right?", "yes"]
    before = sorted(file.name for file in tiny_llava.iterdir())
    with LLM(tiny_llava, convert="classify", hf_overrides=overrides, **SMALL) as llm:
        outputs = llm.score("What shape?", documents, template="Q: {query} D: {document}", use_tqdm=False)
        logits = llm.score("What shape?", documents[0], use_activation=False, use_tqdm=False)
        image = {"prompt": "<image>\n", "multi_modal_data": {"image": random_image(40, 40, 1)}}
        (with_image,) = llm.score("What shape?", image, use_tqdm=False)
        (other_image,) = llm.score(
            "What shape?", image | {"multi_modal_data": {"image": random_image(40, 40, 2)}}, use_tqdm=False
        )
        tokenizer = llm.get_tokenizer()
    assert before == sorted(file.name for file in tiny_llava.iterdir())
    scores = []
    for output, document in zip(outputs, documents, strict=True):
        assert output.prompt_token_ids == tokenizer(f"Q: What shape? D: {document}")["input_ids"]
        pair = lm_logits(output.prompt_token_ids)[[300, 301]]
        assert output.outputs is not None
        assert output.outputs.score == pytest.approx(pair.softmax(dim=-1)[1].item(), abs=1e-6)
        scores.append(pair[1] - pair[0])
    order = np.argsort([-output.outputs.score for output in outputs if output.outputs is not None])
    assert order.tolist() == np.argsort([-float(score) for score in scores]).tolist()
    pair = lm_logits(logits[0].prompt_token_ids)[[300, 301]]
    assert logits[0].outputs is not None
    assert logits[0].outputs.score == pytest.approx((pair[1] - pair[0]).item(), abs=1e-5)
    assert with_image.outputs is not None
    assert other_image.outputs is not None
    assert abs(with_image.outputs.score - other_image.outputs.score) > 1e-4


def test_rows_of_a_tied_output_layer(tmp_path: Path) -> None:
    """BLIP-2's output layer is its embedding table, deep inside: the rows come from there."""
    from corellm_blip2.tiny import make_tiny_checkpoint

    path = make_tiny_checkpoint(tmp_path)
    model = transformers.Blip2ForConditionalGeneration.from_pretrained(path, dtype=torch.float32).eval()
    with LLM(path, convert="classify", hf_overrides={"classifier_from_token": [20, 30]}, **SMALL) as llm:
        (output,) = llm.score("Is it red?", "Yes", use_tqdm=False)
    with torch.inference_mode():
        logits = model.language_model(input_ids=torch.tensor([output.prompt_token_ids])).logits[0, -1]
    assert output.outputs is not None
    assert output.outputs.score == pytest.approx(logits[[20, 30]].softmax(dim=-1)[1].item(), abs=1e-6)


def test_classes_of_tokens_without_processing(tiny_llava: Path, lm_logits: Any, tmp_path: Path) -> None:
    """Rows are copied: the classes' logits are the tokens'; the configuration's own file can say so, too."""
    path = rewritten(
        tiny_llava, tmp_path, config={"classifier_from_token": [20, 300, 301], "method": "no_post_processing"}
    )
    with LLM(path, convert="classify", **SMALL) as llm:
        (output,) = llm.classify(TEXT, use_activation=False, use_tqdm=False)
    assert output.outputs is not None
    wanted = lm_logits(output.prompt_token_ids)[[20, 300, 301]]
    torch.testing.assert_close(torch.tensor(output.outputs.probs), wanted, **CLOSE)


def test_sentence_transformers_files(tiny_llava: Path, tmp_path: Path) -> None:
    """Pooling by mean, a projection with tanh and normalisation, as the checkpoint's files say, without a setting."""
    path = rewritten(tiny_llava, tmp_path)
    write_modules(path, ["Transformer", "Pooling", "Dense", "Normalize"], {"pooling_mode_mean_tokens": True})
    weight, bias = random_tensor(16, WIDTH), random_tensor(16)
    save_file({"linear.weight": weight, "linear.bias": bias}, path / "2_Dense" / "model.safetensors")
    (path / "2_Dense" / "config.json").write_text(
        json.dumps({"activation_function": "torch.nn.modules.activation.Tanh"})
    )
    with LLM(path, **SMALL) as llm:
        (output,) = llm.embed(TEXT, use_tqdm=False)
        llm.engine.scheduler.max_num_batched_tokens = 3
        (cut,) = llm.embed(TEXT, use_tqdm=False)
    mean = hidden_states(tiny_llava, output.prompt_token_ids).mean(dim=0)
    wanted = torch.nn.functional.normalize((weight @ mean + bias).tanh(), dim=0)
    for one in (output, cut):
        assert one.outputs is not None
        torch.testing.assert_close(torch.tensor(one.outputs.embedding), wanted, **CLOSE)
        assert one.num_cached_tokens == 0


@pytest.mark.parametrize(
    ("stated", "labels", "wanted"),
    [
        ({}, 1, "sigmoid"),
        ({}, 2, "softmax"),
        ({"problem_type": "regression"}, 1, "none"),
        ({"problem_type": "single_label_classification"}, 1, "softmax"),
        ({"problem_type": "multi_label_classification"}, 4, "sigmoid"),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, 1, "none"),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.activation.Sigmoid"}, 3, "sigmoid"),
    ],
)
def test_activation_of_classes(tiny_llava: Path, stated: dict[str, Any], labels: int, wanted: str) -> None:
    """The checkpoint decides, else the number of labels: one is a sigmoid, several are a softmax."""
    hf_config = transformers.LlavaConfig.from_pretrained(tiny_llava)
    for name, value in stated.items():
        setattr(hf_config, name, value)
    assert activation_of("auto", hf_config, labels) == wanted
    assert activation_of("none", hf_config, labels) == "none"


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, CheckpointError, r"no head .*classifier_from_token"),
        ({"hf_overrides": {"classifier_from_token": ["no such token", "yes"]}}, ConfigError, "single token"),
        ({"hf_overrides": {"classifier_from_token": [1, 10**6]}}, ConfigError, "single token"),
        (
            {"hf_overrides": {"classifier_from_token": [1, 2, 3], "method": "from_2_way_softmax"}},
            ConfigError,
            "takes two tokens",
        ),
        ({"hf_overrides": {"classifier_from_token": [1, 2], "method": "mean"}}, ConfigError, "method must be"),
    ],
)
def test_heads_that_cannot_be_made(
    tiny_llava: Path, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    """A model without a head, and wrong tokens for one, are refused with the way out."""
    with pytest.raises(error, match=message):
        LLM(tiny_llava, convert="classify", **options, **SMALL)


def test_a_wrong_label_count(tiny_llava: Path, tmp_path: Path) -> None:
    """A head with another number of labels than the configuration is refused."""
    path = rewritten(
        tiny_llava,
        tmp_path,
        architecture="LlavaForSequenceClassification",
        heads={"score.weight": random_tensor(3, WIDTH)},
        config={"id2label": {"0": "no", "1": "yes"}},
    )
    with pytest.raises(CheckpointError, match=r"2 labels \(id2label\), .* 3"):
        LLM(path, **SMALL)
