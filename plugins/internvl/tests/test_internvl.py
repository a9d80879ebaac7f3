"""What is InternVL's own: tiles, the published files, conversations, and checkpoints that it cannot serve."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from corellm import LLM, SamplingParams
from corellm.errors import CheckpointError, ProcessorKwargsError, PromptError, SurplusPlaceholderError
from corellm_internvl.config import load_config
from corellm_internvl.processor import Tiler
from corellm_internvl.tiny import make_tiny_checkpoint
from corellm_internvl.tokenizer import load_tokenizer

PER_TILE = 4
GREEDY = SamplingParams(temperature=0, max_tokens=6, min_tokens=6)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint, not to be written to."""
    return make_tiny_checkpoint(tmp_path_factory.mktemp("internvl"))


@pytest.fixture(scope="module")
def llm(checkpoint: Path) -> Iterator[LLM]:
    """The checkpoint, loaded."""
    with LLM(str(checkpoint), dtype="float32") as loaded:
        yield loaded


def make_image(width: int = 90, height: int = 50, seed: int = 1) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def edit(file: Path, **changes: Any) -> None:
    """Change entries of a JSON object; None removes one."""
    stored = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({key: value for key, value in stored.items() if value is not None}))


# --- tiles ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiler(checkpoint: Path) -> Tiler:
    return Tiler(load_config(checkpoint))


@pytest.fixture(scope="module")
def theirs() -> Any:
    """Transformers' image processor for its own layout of InternVL: the oracle of grids and pixels."""
    means = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
    size = {"height": 56, "width": 56}
    return transformers.GotOcr2ImageProcessorPil(crop_to_patches=True, size=size, **means)


@pytest.mark.parametrize(("fewest", "most"), [(1, 6), (1, 12), (2, 4), (5, 5)])
def test_grids_of_all_shapes(tiler: Tiler, theirs: Any, fewest: int, most: int) -> None:
    """As many tiles as transformers cuts, whatever the sides: also of equal ratios, small and large."""
    kwargs, found = {"min_dynamic_patch": fewest, "max_dynamic_patch": most}, set()
    for width in (1, 30, 56, 57, 84, 112, 168, 224, 300, 1000):
        for height in (1, 40, 56, 79, 80, 112, 168, 336, 2000):
            columns, rows = tiler.grid(width, height, **kwargs)
            count = columns * rows + (columns * rows > 1)
            want = theirs.get_number_of_image_patches(height, width, {"min_patches": fewest, "max_patches": most})
            assert count == want, (width, height)
            found.add((columns, rows))
    assert len(found) >= min(2, most - fewest + 1)


@pytest.mark.parametrize("size", [(90, 50), (50, 130), (56, 56), (500, 20), (3, 7)])
def test_pixels_are_those_of_transformers(tiler: Tiler, theirs: Any, size: tuple[int, int]) -> None:
    """Tiles in the same order, resized alike, the small image last; rescaled in another order of rounding."""
    image = make_image(*size)
    want = theirs(image, return_tensors="pt", min_patches=1, max_patches=6)["pixel_values"]
    torch.testing.assert_close(torch.from_numpy(tiler(image)), want, atol=2e-6, rtol=0)


def test_tokens_of_tiles(llm: LLM) -> None:
    """The layout, written out: marks around the tokens of all tiles and of the small image."""
    prompt = {"prompt": "yes<image>no", "multi_modal_data": {"image": make_image(112, 56)}}
    got = llm.engine.input_processor.process(prompt)
    tokenizer = llm.get_tokenizer()
    yes, no = (tokenizer(text)["input_ids"] for text in ("yes", "no"))
    begin, context, end = tokenizer.convert_tokens_to_ids(["<img>", "<IMG_CONTEXT>", "</img>"])
    assert got.token_ids == [*yes, begin, *[context] * 3 * PER_TILE, end, *no]


def test_impossible_numbers_of_tiles(llm: LLM) -> None:
    """Refused by name; more tiles than planned are, too."""
    for kwargs, words in (
        ({"max_dynamic_patch": 0}, "max_dynamic_patch .*1 to 1024; got 0"),
        ({"min_dynamic_patch": 4, "max_dynamic_patch": 2}, "min_dynamic_patch=4 is above max_dynamic_patch=2"),
        ({"max_dynamic_patch": 10**9}, "from 1 to 1024"),
        ({"max_dynamic_patch": 800}, r"\d+ tiles, more than 6"),
    ):
        prompt = {"prompt": "<image>", "multi_modal_data": {"image": make_image(561, 56)}}
        with pytest.raises(ProcessorKwargsError, match=words):
            llm.engine.input_processor.process({**prompt, "mm_processor_kwargs": kwargs})


# --- the published files ----------------------------------------------------------------------------------------------


def test_the_placeholder_is_behind_the_vocabulary(llm: LLM) -> None:
    """It never reaches the model: in text alone it is refused, and so is an id that is nothing."""
    tokenizer, inputs = llm.get_tokenizer(), llm.engine.input_processor
    token = tokenizer.convert_tokens_to_ids("<image>")
    assert token == inputs.embedding_size
    for alone in ("What <image>?", {"prompt_token_ids": [5, token]}):
        with pytest.raises(SurplusPlaceholderError):
            inputs.process(alone)
    with pytest.raises(PromptError, match=f"token {token + 1}, "):
        inputs.process({"prompt_token_ids": [token + 1]})


def test_files_of_the_original_tokenizer(tmp_path: Path) -> None:
    """`vocab.json`, `merges.txt` and added tokens behind them, as published, give the same as `tokenizer.json`."""
    path = make_tiny_checkpoint(tmp_path)
    stored = json.loads((path / "tokenizer.json").read_text())
    names = [token["content"] for token in stored["added_tokens"]]
    words = [word for word in stored["model"]["vocab"] if word not in names]
    ids = {word: i for i, word in enumerate([*words, *names])}
    (path / "vocab.json").write_text(json.dumps({word: ids[word] for word in words}))
    pairs = [" ".join(pair) for pair in stored["model"]["merges"]]
    (path / "merges.txt").write_text("\n".join(["#version: 0.2", *pairs, ""]))
    (path / "added_tokens.json").write_text(json.dumps({name: ids[name] for name in names}))
    of_images = ("<img>", "</img>", "<IMG_CONTEXT>", "<|im_start|>", "<|im_end|>")
    added = {str(ids[name]): {"content": name, "special": True, "normalized": False} for name in names}
    content = {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}
    content |= {"added_tokens_decoder": added, "additional_special_tokens": list(of_images)}
    text = "<|im_start|>user\n<image>\nWhat shape? <img><IMG_CONTEXT></img><|im_end|>\n 12"
    before = load_tokenizer(path)
    want = before.convert_ids_to_tokens(before(text)["input_ids"])
    (path / "tokenizer.json").unlink()
    (path / "tokenizer_config.json").write_text(json.dumps(content))
    after = load_tokenizer(path)
    assert after.convert_ids_to_tokens(after(text)["input_ids"]) == want
    assert after.convert_tokens_to_ids("<IMG_CONTEXT>") == ids["<IMG_CONTEXT>"]
    assert after.convert_tokens_to_ids("<image>") == len(ids)


def test_code_of_the_checkpoint_is_never_run(tmp_path: Path) -> None:
    """Even with `trust_remote_code`."""
    path = make_tiny_checkpoint(tmp_path / "checkpoint")
    for name in ("configuration_internvl_chat", "modeling_internvl_chat"):
        (path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with LLM(str(path), dtype="float32", trust_remote_code=True) as llm:
        assert llm.generate("What?", GREEDY, use_tqdm=False)[0].finished
    assert not (tmp_path / "ran").exists()


def test_several_files(checkpoint: Path, llm: LLM, tmp_path: Path) -> None:
    """The same output from shards; a shard that is missing is named."""
    path = make_tiny_checkpoint(tmp_path, num_shards=2)
    prompt = {"prompt": "<image>What?", "multi_modal_data": {"image": make_image()}}
    with LLM(str(path), dtype="float32") as sharded:
        (got,), (want,) = (one.generate(prompt, GREEDY, use_tqdm=False) for one in (sharded, llm))
    assert got.outputs[0].token_ids == want.outputs[0].token_ids
    (path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model-00002-of-00002\.safetensors, .*index\.json"):
        LLM(str(path))


def test_constants_of_older_checkpoints(tmp_path: Path) -> None:
    """Frequencies beside the weights of a Llama are computed here."""
    from safetensors.torch import load_file, save_file

    path = make_tiny_checkpoint(tmp_path, language_model="LlamaForCausalLM")
    weights = load_file(path / "model.safetensors")
    weights["language_model.model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(8)
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    with LLM(str(path), dtype="float32") as llm:
        assert llm.generate("What?", GREEDY, use_tqdm=False)[0].finished


def test_sequences_end_where_scaling_would_begin(tmp_path: Path) -> None:
    """With `dynamic` scaling, at the trained length."""
    path = make_tiny_checkpoint(tmp_path, rope_scaling={"factor": 2.0, "type": "dynamic"})
    with LLM(str(path), dtype="float32") as llm:
        assert llm.engine.max_model_len == 2048


# --- conversations ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("system", [None, "Be kind."])
def test_the_older_form(tmp_path: Path, system: str | None) -> None:
    """`Hermes-2` has no lines between messages; `config.json` may have the system message."""
    path = make_tiny_checkpoint(tmp_path, template="Hermes-2", **({"system_message": system} if system else {}))
    with LLM(str(path), dtype="float32") as llm:
        content = [{"type": "image", "image": make_image()}, {"type": "text", "text": "What?"}]
        chat = llm.engine.input_processor.process_chat([{"role": "user", "content": content}])
        (output,) = llm.chat([{"role": "user", "content": content}], GREEDY, use_tqdm=False)
    first = system or (
        "你是由上海人工智能实验室联合商汤科技开发的书生多模态大模型，英文名叫InternVL, 是一个有用无害的人工智能助手。"
    )
    begins = f"<|im_start|>system\n{first}<|im_end|><|im_start|>user\n"
    assert chat.text == f"{begins}<image>\nWhat?<|im_end|><|im_start|>assistant\n"
    assert output.finished


def test_the_end_of_a_message_ends_an_output(llm: LLM) -> None:
    """Beside the ends that generation_config.json states."""
    for token in ("<|im_end|>", "<|endoftext|>"):
        wanted = SamplingParams(max_tokens=6, logit_bias={llm.get_tokenizer().convert_tokens_to_ids(token): 100})
        (output,) = llm.generate("What?", wanted, use_tqdm=False)
        assert (output.outputs[0].finish_reason, len(output.outputs[0].token_ids)) == ("stop", 1)


def test_other_roles_are_refused(llm: LLM) -> None:
    """By name."""
    with pytest.raises(PromptError, match=r"'tool'; .*system, developer"):
        llm.engine.input_processor.process_chat([{"role": "tool", "content": "See."}])


# --- what cannot be served --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"language_model": "InternLM2ForCausalLM"}, "InternLM2ForCausalLM, .* -hf"),
        ({"language_model": "Phi3ForCausalLM"}, "Phi3ForCausalLM; this plugin serves LlamaForCausalLM, Qwen2"),
        ({"ps_version": "v1"}, "ps_version is 'v1', and .* serves 'v2' only"),
        ({"quantization_config": {"quant_method": "awq"}}, r"quantized \(awq\)"),
        ({"image_tokens": False}, "lacks <img>, <IMG_CONTEXT>, </img>"),
    ],
)
def test_refused_before_weights_are_read(tmp_path: Path, settings: dict[str, Any], words: str) -> None:
    """The error says why and what to do."""
    path = make_tiny_checkpoint(tmp_path, **settings)
    (path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=words):
        LLM(str(path))


@pytest.mark.parametrize("section", ["vision_config", "llm_config", "downsample_ratio", "ps_version"])
def test_incomplete_configurations(tmp_path: Path, section: str) -> None:
    """What every InternVL has is named; without a version, tiles are transposed."""
    path = make_tiny_checkpoint(tmp_path)
    edit(path / "config.json", **{section: None})
    with pytest.raises(CheckpointError, match=f"lacks '{section}'|ps_version is 'v1'"):
        LLM(str(path))
