"""What a checkpoint is run for: architectures by suffix, settings that combine, refusals that say what to change."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path

import pytest

from corellm.config import ModelConfig
from corellm.errors import CheckpointError, ConfigError, InvalidParameterError
from corellm.loading.locating import locate
from corellm.loading.model_use import ModelUse
from corellm_pooling.params import POOLING_TASKS, PoolerConfig, PoolingParams
from corellm_pooling.sentence_transformers import read_stated_pooling
from corellm_pooling.settings import CONVERTS, RUNNERS, Conversion, generative_names, resolve
from corellm_pooling.use import PoolingUse

AUTO = {
    "LlamaForCausalLM": None,
    "LlavaForConditionalGeneration": None,
    "BaichuanChatModel": None,
    "QWenLMHeadModel": None,
    "T5ForTextEncoding": "embed",
    "ColPaliEmbeddingModel": "embed",
    "Qwen2ForSequenceClassification": "classify",
    "BertForTokenClassification": "classify",
    "ViTForImageClassification": "classify",
    "SomeClassificationModel": "classify",
    "LlamaForRewardModeling": "embed",
    "Qwen2ForRewardModel": "embed",
    "Qwen2ForProcessRewardModel": "embed",
    "SomeRewardModel": "embed",
    "LlavaModel": "embed",
    "SomethingElse": None,
}


def use_of(found: Conversion | None) -> ModelUse:
    """What a checkpoint is run for."""
    return ModelUse() if found is None else PoolingUse(found)


@pytest.mark.parametrize("architecture", AUTO)
def test_auto_follows_the_suffix(architecture: str) -> None:
    """An architecture's end decides, the longer one first."""
    found = resolve("auto", "auto", architecture)
    assert (found and found.convert) == AUTO[architecture]
    assert ("reward" in use_of(found).tasks) == ("Reward" in architecture)


def test_a_stated_pooling_selects_the_runner() -> None:
    """A sentence-transformer's checkpoint is for embeddings, whatever its architecture; the setting overrides that."""
    assert resolve("auto", "auto", "LlamaForCausalLM", states_pooling=True) == Conversion("embed")
    assert resolve("generate", "auto", "LlamaForCausalLM", states_pooling=True) is None


GENERATIVE, CLASSES, REWARDS, BARE = (
    "LlavaForConditionalGeneration",
    "LlamaForSequenceClassification",
    "ARewardModel",
    "AModel",
)
ACCEPTED = {
    ("auto", "auto", GENERATIVE): None,
    ("auto", "none", GENERATIVE): None,
    ("auto", "embed", GENERATIVE): "embed",
    ("auto", "classify", GENERATIVE): "classify",
    ("generate", "auto", GENERATIVE): None,
    ("generate", "none", GENERATIVE): None,
    ("pooling", "auto", GENERATIVE): "embed",
    ("pooling", "embed", GENERATIVE): "embed",
    ("pooling", "classify", GENERATIVE): "classify",
    **{(runner, "auto", CLASSES): "classify" for runner in ("auto", "pooling")},
    **{(runner, "auto", kind): "embed" for runner in ("auto", "pooling") for kind in (REWARDS, BARE)},
    **{
        (runner, convert, kind): convert
        for runner in ("auto", "pooling")
        for convert in ("none", "embed", "classify")
        for kind in (CLASSES, REWARDS, BARE)
        if (convert, kind) != ("classify", REWARDS)
    },
}
"""Everything that combines: all other combinations are refused."""


@pytest.mark.parametrize("architecture", [GENERATIVE, CLASSES, REWARDS, BARE])
@pytest.mark.parametrize("convert", [*CONVERTS, "reward", "whatever"])
@pytest.mark.parametrize("runner", [*RUNNERS, "whatever"])
def test_every_combination(runner: str, convert: str, architecture: str) -> None:
    """A combination is one of those listed, or is refused with a setting to change."""
    if (runner, convert, architecture) in ACCEPTED:
        found = resolve(runner, convert, architecture)
        assert (found and found.convert) == ACCEPTED[runner, convert, architecture]
        return
    with pytest.raises(ConfigError, match=r"set (runner|convert)=|leave (runner|convert) out|one of"):
        resolve(runner, convert, architecture)


@pytest.mark.parametrize(
    ("runner", "convert", "architecture", "reason"),
    [
        ("draft", "auto", GENERATIVE, "models that draft"),
        ("auto", "reward", GENERATIVE, "no rule"),
        ("generate", "embed", GENERATIVE, "takes the layer"),
        ("pooling", "none", GENERATIVE, "to be converted"),
        ("generate", "auto", CLASSES, "no output layer"),
        ("pooling", "classify", REWARDS, "gives rewards, not classes"),
    ],
)
def test_refusals_have_their_reason(runner: str, convert: str, architecture: str, reason: str) -> None:
    """Each refused kind of combination says why."""
    with pytest.raises(ConfigError, match=reason):
        resolve(runner, convert, architecture)


@pytest.mark.parametrize("task", [*POOLING_TASKS, "generate"])
@pytest.mark.parametrize("converted", [None, Conversion("embed"), Conversion("classify"), Conversion("embed", True)])
def test_tasks_of_each_use(converted: Conversion | None, task: str) -> None:
    """A task that the model was not loaded for is refused, with the way to load it."""
    use = use_of(converted)
    if task in use.tasks:
        use.check_task(task)
        return
    with pytest.raises(InvalidParameterError, match=r"load (the model|a reward)|use reward|as classify"):
        use.check_task(task)


@pytest.mark.parametrize("task", [*POOLING_TASKS, "generate"])
@pytest.mark.parametrize("architecture", [GENERATIVE, CLASSES, REWARDS])
def test_the_way_to_load_it_is_one(architecture: str, task: str) -> None:
    """The settings that an error names can be set for this architecture, and the task is there then."""
    runners = ("generate", "pooling") if architecture == GENERATIVE else ("pooling",)
    for use in (use_of(resolve(runner, "auto", architecture)) for runner in runners):
        with contextlib.suppress(InvalidParameterError):
            use.check_task(task)
            continue
        with pytest.raises(InvalidParameterError) as caught:
            use.check_task(task)
        way = str(caught.value).rpartition("; ")[2]
        named = dict(re.findall(r"(runner|convert)='(\w+)'", way))
        if named and not (task == "generate" and architecture != GENERATIVE):  # those never generate
            chosen = {"convert": "auto", "runner": "auto", **named}
            assert task in use_of(resolve(chosen["runner"], chosen["convert"], architecture)).tasks


def test_names_of_a_family() -> None:
    """A pooling architecture may be served by the plugin of the family's generating model."""
    assert "LlavaForConditionalGeneration" in generative_names("LlavaModel")
    assert generative_names("BertModel")[0] == "BertForCausalLM"  # text models first, where fallbacks claim both ends
    assert "Qwen2ForCausalLM" in generative_names("Qwen2ForProcessRewardModel")
    assert "LlamaForCausalLM" in generative_names("LlamaForSequenceClassification")
    assert generative_names("LlamaForCausalLM") == ()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"task": "generate"}, "task must"),
        ({"task": "embed", "dimensions": 0}, "dimensions .*2147483647"),
        ({"task": "embed", "dimensions": 2.5}, "dimensions"),
        ({"task": "embed", "dimensions": True}, "dimensions"),
        ({"task": "classify", "dimensions": 4}, "dimensions cuts embeddings"),
        ({"task": "embed", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens .*or -1"),
        ({"task": "embed", "truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"task": "score", "token_type_ids": [0, 2]}, "token_type_ids"),
        ({"task": "embed", "use_activation": "yes"}, "use_activation"),
    ],
)
def test_wrong_params(fields: dict[str, object], message: str) -> None:
    """Wrong parameters of a pooled request are refused when they are made."""
    with pytest.raises(InvalidParameterError, match=message):
        PoolingParams(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("MEAN", "must be like"),
        ({"pooling": "MEAN"}, "has no 'pooling'"),
        ({"pooling_type": "MEDIAN"}, "CLS, LAST, MEAN, MAX, MEAN_SQRT, WEIGHTED, ALL, STEP"),
        ({"pooling_type": "STEP"}, "needs step_tag_id"),
        ({"activation": "tanh"}, "activation"),
        ({"logit_scale": float("nan")}, "logit_scale"),
    ],
)
def test_wrong_pooler_config(given: object, message: str) -> None:
    """A pooler's configuration is checked key by key."""
    with pytest.raises(ConfigError, match=message):
        PoolerConfig.of(given)  # type: ignore[arg-type]


def test_a_pooler_config_for_a_model_that_generates_text(tiny_llava: Path) -> None:
    """It is refused before weights are read, unless it is empty."""
    with pytest.raises(ConfigError, match="pools nothing"):
        locate(ModelConfig(model=str(tiny_llava), pooler_config={"pooling_type": "MEAN"}))
    assert locate(ModelConfig(model=str(tiny_llava), pooler_config={})).use.tasks == ("generate",)


def write_modules(path: Path, kinds: list[str], pooling: dict[str, object]) -> None:
    """Write what sentence-transformers writes beside a checkpoint."""
    modules = [
        {"idx": i, "name": str(i), "path": f"{i}_{kind}", "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    (path / "modules.json").write_text(json.dumps(modules))
    for i, kind in enumerate(kinds):
        (path / f"{i}_{kind}").mkdir(exist_ok=True)
        if kind == "Pooling":
            (path / f"{i}_{kind}" / "config.json").write_text(json.dumps(pooling))


def test_stated_pooling(tmp_path: Path) -> None:
    """Pooling type, normalisation and projections come from the files of sentence-transformers."""
    assert read_stated_pooling(tmp_path) is None
    write_modules(tmp_path, ["Transformer", "Pooling", "Dense", "Normalize"], {"pooling_mode_lasttoken": True})
    stated = read_stated_pooling(tmp_path)
    assert stated is not None
    assert (stated.pooling_types, stated.normalize, stated.dense) == (("LAST",), True, (tmp_path / "2_Dense",))
    write_modules(tmp_path, ["Transformer", "Pooling"], {"pooling_mode_cls_token": False, "pooling_mode": "mean"})
    stated = read_stated_pooling(tmp_path)
    assert stated is not None
    assert (stated.pooling_types, stated.normalize, stated.dense) == (("MEAN",), False, ())


def test_several_stated_modes_are_joined(tmp_path: Path) -> None:
    """In sentence-transformers' order, whatever the order in the file; a cross-encoder states none."""
    modes = {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True, "pooling_mode_lasttoken": False}
    write_modules(tmp_path, ["Transformer", "Pooling"], modes)
    stated = read_stated_pooling(tmp_path)
    assert stated is not None
    assert stated.pooling_types == ("CLS", "MEAN")
    write_modules(tmp_path, ["Transformer"], {})
    assert read_stated_pooling(tmp_path) is None


@pytest.mark.parametrize(
    ("kinds", "pooling", "message"),
    [
        (["Transformer", "Dense"], {}, "ColBERT"),
        (["Transformer", "Normalize"], {}, "in this order"),
        (["Transformer", "Pooling", "LSTM"], {"pooling_mode": "mean"}, "the module LSTM cannot be run"),
        (["Transformer", "Normalize", "Pooling"], {"pooling_mode": "mean"}, "in this order"),
        (["Transformer", "Pooling"], {"pooling_mode_median_tokens": True}, "pooling by median_tokens cannot be run"),
    ],
)
def test_stated_pooling_that_cannot_be_run(
    tmp_path: Path, kinds: list[str], pooling: dict[str, object], message: str
) -> None:
    """What there is not is refused by name, never run as something else."""
    write_modules(tmp_path, kinds, pooling)
    with pytest.raises(CheckpointError, match=message):
        read_stated_pooling(tmp_path)


def test_modules_outside_of_the_checkpoint(tmp_path: Path) -> None:
    """A module's folder cannot be elsewhere."""
    (tmp_path / "modules.json").write_text(json.dumps([{"type": "models.Pooling", "path": "../1_Pooling"}]))
    with pytest.raises(CheckpointError, match="leaves the checkpoint"):
        read_stated_pooling(tmp_path)
