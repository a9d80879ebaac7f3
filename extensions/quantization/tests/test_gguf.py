"""GGUF files give what transformers gives of their weights, and tokens as the tokenizers that they are of."""

from __future__ import annotations

import json
import logging
import os
import shutil
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from gguf.constants import GGMLQuantizationType as Kind
from torch import Tensor

from corellm import LLM, SamplingParams
from corellm.errors import CheckpointError, ConfigError, MissingExtraError
from corellm.tiny_checkpoints import decoder_settings, randomize_weights, train_sentencepiece, train_tokenizer
from corellm_gemma3.tiny import make_tiny_checkpoint as make_gemma3
from corellm_quantization.gguf.blocks import FORMS, decoded
from corellm_quantization.gguf.checkpoint import make_checkpoint
from corellm_quantization.gguf.file import read_header
from corellm_qwen_vl.tiny import make_tiny_checkpoint as make_qwen_vl
from corellm_transformers.tiny import make_tiny_checkpoint as make_transformers
from extensions.quantization.tests.gguf_files import (
    stored,
    tokenizer_values,
    write_llava,
    write_qwen_vl,
    write_siglip,
    write_text,
    write_tower,
)
from extensions.quantization.tests.oracle import greedy
from tests.fixtures import random_image

PARAMS = SamplingParams(temperature=0, max_tokens=6, logprobs=3, ignore_eos=True)
PROMPT, IMAGE = "USER: <image>\nWhat shape? ASSISTANT:", random_image(60, 50, 1)
TEXTS = (
    "What shape is in the image?", " two  spaces\n\nand\ttabs ", "unseen: Ångström, 数字 7, 🙂", "</s> <s> <image>",
    "", "it's 12345!",
)  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for what is made of files, for the whole run."""
    path = tmp_path_factory.getbasetemp() / "gguf-cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(path))
    return path


def text_model(kind: str, tokenizer: Any, **more: Any) -> Any:
    """A tiny model of transformers."""
    config, model = {
        "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
        "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    }[kind]
    made = model(config(**decoder_settings(tokenizer, num_key_value_heads=2, **more)))
    randomize_weights(made, 0)
    return made.eval()


def byte_level() -> Any:
    """A byte-level tokenizer that begins texts with a token of its own."""
    return train_tokenizer(["<image>"], bos="<s>", eos="</s>", pad="<pad>", unk="<unk>", add_bos=True)


def of_pieces() -> Any:
    """A tokenizer as SentencePiece has them."""
    return transformers.LlamaTokenizer(**train_sentencepiece(["<unk>", "<s>", "</s>"]))


def assert_same(output: Any, wanted: tuple[list[int], Tensor]) -> None:
    """The same tokens, and nearly the same log-probabilities: inputs of integers are rounded to 15 bits."""
    tokens, logprobs = wanted
    assert output.token_ids == tokens
    for step, expected in zip(output.logprobs, logprobs, strict=True):
        assert all(abs(found.logprob - expected[token].item()) < 2e-3 for token, found in step.items())


@pytest.mark.parametrize("kind", FORMS, ids=lambda kind: kind.name)
def test_integers_in_groups_are_exactly_the_weights(kind: Kind) -> None:
    weight = torch.randn(5, 512, generator=torch.Generator().manual_seed(0))
    raw, values = stored(weight, kind)
    made = decoded(kind, torch.from_numpy(raw))
    assert torch.equal(made.widened(), values)
    assert (made.group, made.bits, made.kind) == FORMS[kind][1:]
    assert values.std() > 0.01


KINDS_OF_FILES: Mapping[str, tuple[str, Callable[[], Any], int, Callable[[str], Kind]]] = {
    "F16": ("llama", byte_level, 64, lambda name: Kind.F16),
    "Q8_0": ("qwen2", byte_level, 64, lambda name: Kind.Q8_0),
    "Q4_0 and Q4_1": ("llama", of_pieces, 64, lambda name: Kind.Q4_1 if "_proj" in name else Kind.Q4_0),
    "Q4_K and Q6_K": ("llama", byte_level, 256, lambda name: Kind.Q6_K if "v_proj" in name else Kind.Q4_K),
}


@pytest.mark.parametrize("kind", KINDS_OF_FILES)
def test_a_text_model_is_what_transformers_makes_of_it(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    family, make_tokenizer, width, kind_of = KINDS_OF_FILES[kind]
    tokenizer = make_tokenizer()
    path = tmp_path / "model.gguf"
    write_text(path, text_model(family, tokenizer, hidden_size=width), tokenizer, kind_of)
    reference = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=path.name, dtype=torch.float32)
    wanted = greedy(reference, tokenizer("What shape?", return_tensors="pt"))
    with caplog.at_level(logging.INFO), LLM(str(path), dtype="float32") as llm:
        output = llm.generate("What shape?", PARAMS, use_tqdm=False)[0].outputs[0]
        beside = llm.generate(["A", "What shape?", "How many"], PARAMS, use_tqdm=False)[1].outputs[0]
    assert_same(output, wanted)
    assert (beside.token_ids, beside.logprobs) == (output.token_ids, output.logprobs)  # bit for bit
    kinds = sorted({kind_of(name).name for name in reference.state_dict() if "_proj" in name} - {"F16"})
    said = [record.getMessage() for record in caplog.records if record.name.endswith("gguf.reading")]
    assert len(said) == (2 if kinds else 0)
    if kinds:
        assert all(f" x {name}" in said[0] for name in kinds)
        assert said[1] == f"weights widened to torch.float32: 1 x {kind_of('embed_tokens').name}"


@pytest.mark.parametrize("make_tokenizer", [byte_level, of_pieces])
def test_tokens_are_the_original_tokenizers(make_tokenizer: Callable[[], Any], tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = "{{ messages[0]['content'] }}!"
    write_text(tmp_path / "a.gguf", text_model("llama", tokenizer), tokenizer, lambda name: Kind.F32)
    made = transformers.AutoTokenizer.from_pretrained(make_checkpoint(tmp_path, None))
    for text in TEXTS:
        assert made(text)["input_ids"] == tokenizer(text)["input_ids"], text
    ids = tokenizer("What shape is in the image?")["input_ids"]
    assert made.decode(ids) == tokenizer.decode(ids)
    assert made.chat_template == tokenizer.chat_template


@pytest.fixture(scope="module")
def llava_files(tiny_llava: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A folder with a LLaVA in two files, and the model of transformers with the same weights."""
    folder = tmp_path_factory.mktemp("llava-gguf")
    return folder, write_llava(folder, tiny_llava, Kind.Q8_0)


def test_a_tower_beside_the_file_sees_images(llava_files: tuple[Path, Any], tiny_llava: Path) -> None:
    folder, model = llava_files
    processor = transformers.AutoProcessor.from_pretrained(tiny_llava)
    wanted = greedy(model, processor(images=IMAGE, text=PROMPT, return_tensors="pt"))
    with LLM(str(folder), dtype="float32") as llm:
        request = {"prompt": PROMPT, "multi_modal_data": {"image": IMAGE}}
        assert_same(llm.generate(request, PARAMS, use_tqdm=False)[0].outputs[0], wanted)


@pytest.mark.parametrize("generation", ["Qwen2VL", "Qwen2_5_VL"])
def test_qwen_vl_sees_images_and_reads_texts_alone(generation: str, tmp_path: Path) -> None:
    checkpoint = make_qwen_vl(tmp_path / "checkpoint", architecture=f"{generation}ForConditionalGeneration")
    model = write_qwen_vl(tmp_path, checkpoint, Kind.Q8_0)
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    image = random_image(110, 90, 1)  # of several windows
    images = transformers.Qwen2VLImageProcessorPil.from_pretrained(checkpoint)(image, return_tensors="pt")
    prompt, pad = "<|vision_start|><|image_pad|><|vision_end|>What shape?", "<|image_pad|>"
    num_tokens = int(images["image_grid_thw"].prod()) // 4
    inputs = tokenizer(prompt.replace(pad, pad * num_tokens), return_tensors="pt")
    is_image = (inputs["input_ids"] == tokenizer.convert_tokens_to_ids(pad)).int()
    wanted = greedy(model, {**inputs, **images, "mm_token_type_ids": is_image})
    with LLM(str(tmp_path), dtype="float32") as llm:
        request = {"prompt": prompt, "multi_modal_data": {"image": image}}
        assert_same(llm.generate(request, PARAMS, use_tqdm=False)[0].outputs[0], wanted)
    wanted = greedy(model, tokenizer("What shape?", return_tensors="pt"))
    with LLM(str(tmp_path), mmproj="none", dtype="float32") as llm:
        assert_same(llm.generate("What shape?", PARAMS, use_tqdm=False)[0].outputs[0], wanted)


@pytest.mark.parametrize("as_published", [False, True])
def test_gemma_3_sees_images_with_windows_and_scaled_positions(as_published: bool, tmp_path: Path) -> None:
    """Published: positions of layers without a window are scaled, and the vocabulary lacks the token of images."""
    checkpoint = make_gemma3(tmp_path / "checkpoint", layer_types=["sliding_attention"] * 5 + ["full_attention"])
    processor = transformers.AutoProcessor.from_pretrained(checkpoint)
    more: dict[str, Any] = {}
    if as_published:
        spelled = tokenizer_values(processor.tokenizer)["tokenizer.ggml.tokens"]
        more = {
            "gemma3.rope.scaling.type": "linear", "gemma3.rope.scaling.factor": 8.0,
            "tokenizer.ggml.tokens": ["<unused>" if token == "<image_soft_token>" else token for token in spelled],
        }  # fmt: skip
        config = json.loads((checkpoint / "config.json").read_text())
        config["text_config"]["rope_parameters"]["full_attention"] |= {"rope_type": "linear", "factor": 8.0}
        (checkpoint / "config.json").write_text(json.dumps(config))
    model = write_siglip(tmp_path, checkpoint, Kind.Q8_0, **more)
    prompt = "<start_of_image> What shape is in it?"
    wanted = greedy(model, processor(images=IMAGE, text=prompt, return_tensors="pt"))
    with LLM(str(tmp_path), dtype="float32") as llm:
        request = {"prompt": prompt, "multi_modal_data": {"image": IMAGE}}
        assert_same(llm.generate(request, PARAMS, use_tqdm=False)[0].outputs[0], wanted)
        made = llm.get_tokenizer()
        assert all(made(text)["input_ids"] == processor.tokenizer(text)["input_ids"] for text in TEXTS)


def test_idefics_3_sees_the_tiles_of_an_image(tmp_path: Path) -> None:
    checkpoint = make_transformers(tmp_path / "checkpoint", architecture="Idefics3ForConditionalGeneration")
    model = write_siglip(tmp_path, checkpoint, Kind.Q8_0)
    image, prompt = random_image(110, 90, 1), "<image>What shape?"
    inputs = transformers.AutoProcessor.from_pretrained(checkpoint)(images=image, text=prompt, return_tensors="pt")
    assert inputs["pixel_values"].shape[1] > 2
    with LLM(str(tmp_path), dtype="float32") as llm:
        request = {"prompt": prompt, "multi_modal_data": {"image": image}}
        assert_same(llm.generate(request, PARAMS, use_tqdm=False)[0].outputs[0], greedy(model, inputs))


def test_names_of_the_first_towers_and_a_vocabulary_without_a_token_for_images(
    llava_files: tuple[Path, Any], tiny_llava: Path, tmp_path: Path
) -> None:
    _, model = llava_files
    processor = transformers.AutoProcessor.from_pretrained(tiny_llava)
    tokens = tokenizer_values(processor.tokenizer)["tokenizer.ggml.tokens"]
    renamed = [token.replace("<image>", "<unused>") for token in tokens]
    write_text(
        tmp_path / "model.gguf", model, processor.tokenizer, lambda name: Kind.F32,
        **{"tokenizer.ggml.tokens": renamed},
    )  # fmt: skip
    write_tower(tmp_path / "tower.gguf", model, processor.image_processor, swapped=True)
    wanted = greedy(model, processor(images=IMAGE, text=PROMPT, return_tensors="pt"))
    with LLM(str(tmp_path / "model.gguf"), mmproj=tmp_path / "tower.gguf", dtype="float32") as llm:
        request = {"prompt": PROMPT, "multi_modal_data": {"image": IMAGE}}
        assert_same(llm.generate(request, PARAMS, use_tqdm=False)[0].outputs[0], wanted)


def test_a_tower_of_another_model_or_kind_is_refused(llava_files: tuple[Path, Any], tmp_path: Path) -> None:
    folder, model = llava_files
    tokenizer, images = byte_level(), transformers.CLIPImageProcessorPil()
    write_text(
        tmp_path / "wide.gguf", text_model("llama", tokenizer, hidden_size=128), tokenizer, lambda name: Kind.F32
    )
    with pytest.raises(CheckpointError, match="embeddings have the width 64, the text model's 128"):
        make_checkpoint(tmp_path / "wide.gguf", str(folder / "mmproj-model.gguf"))
    for key, value, message in (
        ("clip.projector_type", "resampler", "of the kind 'resampler' are not known; known: mlp, gemma3, id"),
        ("clip.projector_type", "qwen2vl_merger", "the tokenizer lacks <|vision_start|>, .*; this is no Qwen2-VL"),
        ("clip.vision.feature_layer", [1, 2], "outputs of chosen layers are not known"),
        ("clip.vision.patch_size", "14", "clip.vision.patch_size is '14', expected int"),
        ("clip.vision.block_count", 10**9, "block_count is 1000000000, and the file has"),
    ):
        write_tower(tmp_path / "tower", model, images, **{key: value})
        with pytest.raises(CheckpointError, match=message):
            make_checkpoint(folder / "model.gguf", str(tmp_path / "tower"))
    with pytest.raises(CheckpointError, match=r"mmproj: there is no file '/nowhere'"):
        make_checkpoint(folder / "model.gguf", "/nowhere")
    with pytest.raises(CheckpointError, match=r"model.gguf is no encoder: its architecture is 'llama'; name the"):
        make_checkpoint(folder / "model.gguf", str(folder / "model.gguf"))
    with pytest.raises(CheckpointError, match=r"mmproj-model.gguf is an encoder alone: name the model's file"):
        make_checkpoint(folder / "mmproj-model.gguf", None)
    with pytest.raises(ConfigError, match=r"mmproj='x.gguf' goes with a GGUF file; demo is .*: leave mmproj out"):
        LLM("demo", mmproj="x.gguf")
    alone = make_checkpoint(folder / "model.gguf", "none")
    assert transformers.AutoConfig.from_pretrained(alone).architectures == ["LlamaForCausalLM"]


def test_which_file_of_a_folder_is_meant_must_be_clear(llava_files: tuple[Path, Any], tmp_path: Path) -> None:
    folder, _ = llava_files
    for name in ("a.gguf", "b.gguf", "mmproj-a.gguf", "mmproj-b.gguf"):
        (tmp_path / name).symlink_to(folder / ("mmproj-model.gguf" if "mmproj" in name else "model.gguf"))
    with pytest.raises(CheckpointError, match=r"has 2 GGUF files of models \(a.gguf, b.gguf\); name one"):
        make_checkpoint(tmp_path, None)
    folder = tmp_path / "two"
    folder.mkdir()
    for name in ("mmproj-a.gguf", "mmproj-b.gguf"):
        (folder / name).symlink_to(tmp_path / name)
    (folder / "a.gguf").write_bytes((tmp_path / "a.gguf").read_bytes())
    with pytest.raises(CheckpointError, match=r"several encoders \(mmproj-a.gguf, mmproj-b.gguf\)"):
        make_checkpoint(folder, None)


def test_a_tower_is_found_beside_the_name_of_a_file_that_is_stored_elsewhere(
    llava_files: tuple[Path, Any], tmp_path: Path
) -> None:
    """As the hub's cache has it: names lead to files without their endings."""
    folder, stored = llava_files[0], tmp_path / "blobs"
    stored.mkdir()
    (snapshot := tmp_path / "snapshot").mkdir()
    for number, name in enumerate(("model.gguf", "mmproj-model.gguf")):
        (stored / f"{number}").write_bytes((folder / name).read_bytes())
        (snapshot / name).symlink_to(stored / f"{number}")
    for path in (snapshot, snapshot / "model.gguf"):
        made = transformers.AutoConfig.from_pretrained(make_checkpoint(path, None))
        assert made.architectures == ["LlavaForConditionalGeneration"]


def test_truncated_and_hostile_files_are_refused(llava_files: tuple[Path, Any], tmp_path: Path) -> None:
    whole, path = (llava_files[0] / "model.gguf").read_bytes(), tmp_path / "model.gguf"
    huge = struct.pack("<Q", 2**63)
    key = struct.pack("<Q", 1) + b"a"
    one_value = whole[:8] + struct.pack("<QQ", 0, 1) + key
    broken = {
        "empty": b"",
        "another file": b"PK\x03\x04" + whole[4:],
        "another version": whole[:4] + struct.pack("<I", 9) + whole[8:],
        "cut in the header": whole[: len(whole) // 40],
        "cut in the last tensor": whole[:-1000],
        "many tensors": whole[:8] + huge + whole[16:],
        "a long key": whole[:24] + huge + whole[32:],
        "a long array": one_value + struct.pack("<II", 9, 4) + huge,
        "deep arrays": one_value + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 50,
        "a key twice": whole[:8] + struct.pack("<QQ", 0, 2) + (key + struct.pack("<IB", 0, 1)) * 2,
        "an unknown type": one_value + struct.pack("<I", 77),
        "text that is none": one_value + struct.pack("<IQ", 8, 2) + b"\xff\xff",
    }
    for data in broken.values():
        path.write_bytes(data)
        with pytest.raises(CheckpointError, match="not a readable GGUF file"):
            read_header(path)
    for step in range(0, 2000, 7):  # of any byte in the header, an error of ours or none
        changed = bytearray(whole)
        changed[24 + step * 5] ^= 0x55
        path.write_bytes(changed)
        try:
            read_header(path)
        except CheckpointError:
            continue


def test_files_that_no_model_is_made_of_are_refused(tmp_path: Path) -> None:
    tokenizer, path = byte_level(), tmp_path / "model.gguf"
    model = text_model("llama", tokenizer)

    def refused(message: str, kind: Kind = Kind.F32, **more: Any) -> None:
        write_text(path, model, tokenizer, lambda name: kind, **more)
        with pytest.raises(CheckpointError, match=message):
            LLM(str(path))

    refused("positions scaled by 'longrope' are not known", **{"llama.rope.scaling.type": "longrope"})
    refused("is one of 3 parts, and 1 can be told by its name", **{"split.count": 3})
    refused("block_count is 1000000000, and the file has", **{"llama.block_count": 10**9})
    refused("transformers cannot use this file", **{"tokenizer.ggml.tokens": None})
    refused(r"the weights cannot be loaded|has no place|lacks", **{"llama.block_count": 3})
    refused("has no place in a model of 'llama'", **{"llama.block_count": 1})
    refused("expected", **{"llama.feed_forward_length": 96}, kind=Kind.Q8_0)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that says that it is its only part is a whole one; what cannot be kept fails with the way out."""
    tokenizer, path = byte_level(), tmp_path / "model.gguf"
    write_text(path, text_model("llama", tokenizer), tokenizer, lambda name: Kind.F32, **{"split.count": 1})
    monkeypatch.setenv("XDG_CACHE_HOME", str(path))
    with pytest.raises(CheckpointError, match=r"cannot be kept in .*; remove what is there, or set XDG_CACHE_HOME"):
        make_checkpoint(path, None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = make_checkpoint(path, None)
    (made / "config.json").unlink()
    with pytest.raises(CheckpointError, match=f"cannot be kept in {made}"):
        make_checkpoint(path, None)
    assert [entry.name for entry in made.parent.iterdir()] == [made.name]
    with pytest.raises(CheckpointError, match="mmproj: there is no file 'xxx"):
        make_checkpoint(path, "x" * 5000)


def test_a_file_that_was_replaced_is_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by one of its size and time; while it is loaded, that is an error. What killed processes left goes."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tokenizer, path = byte_level(), tmp_path / "model.gguf"
    model = text_model("llama", tokenizer)

    def write(template: str) -> None:
        write_text(path, model, tokenizer, lambda name: Kind.F32, **{"tokenizer.chat_template": template})
        os.utime(path, (1, 1))

    write("{{ 1 }}")
    first = make_checkpoint(path, None)
    assert make_checkpoint(path, None) == first
    for name in (".unfinished-left", ".unfinished-new"):
        (first.parent / name).mkdir()
    os.utime(first.parent / ".unfinished-left", (0, 0))
    write("{{ 2 }}")
    second = make_checkpoint(path, None)
    assert {entry.name for entry in first.parent.iterdir()} == {first.name, second.name, ".unfinished-new"}
    assert transformers.AutoTokenizer.from_pretrained(second).chat_template == "{{ 2 }}"
    shutil.rmtree(second)
    first.rename(second)  # as if it were replaced after its configuration was read
    with pytest.raises(CheckpointError, match=r"model.gguf was replaced while it was loaded; load it again"):
        LLM(str(path))


def test_factors_of_llama_3_and_linear_scaling_reach_the_configuration(tmp_path: Path) -> None:
    tokenizer = byte_level()
    rope = {
        "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }  # fmt: skip
    model = text_model("llama", tokenizer, rope_parameters=rope)
    frequencies = 1 / 5e5 ** (torch.arange(0, 16, 2) / 16)
    factors = frequencies / model.model.rotary_emb.inv_freq
    path = tmp_path / "model.gguf"
    write_text(path, model, tokenizer, lambda name: Kind.F32, factors)
    found = transformers.AutoConfig.from_pretrained(make_checkpoint(path, None)).rope_parameters
    assert found == pytest.approx(rope)
    factors[2] *= 1.5
    write_text(path, model, tokenizer, lambda name: Kind.F32, factors)
    with pytest.raises(CheckpointError, match="factors of positions that are not those of Llama 3"):
        make_checkpoint(path, None)
    scaling = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0}
    write_text(path, model, tokenizer, lambda name: Kind.F32, **scaling)
    found = transformers.AutoConfig.from_pretrained(make_checkpoint(path, None)).rope_parameters
    assert (found["rope_type"], found["factor"]) == ("linear", 2.0)


def test_the_extension_is_named_where_it_is_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    monkeypatch.setattr("corellm.loading.checkpoint.first_result", lambda *_, **given: None)
    for path in (tmp_path, tmp_path / "model.gguf"):
        with pytest.raises(MissingExtraError, match=r"GGUF files need corellm-quantization; .*install \./extensions"):
            LLM(str(path))
