"""Checkpoints that are written with rounded weights: what the format's own package, transformers and corellm read."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32
from compressed_tensors.quantization import QuantizationScheme
from compressed_tensors.utils.match import is_match
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoProcessor, LlavaForConditionalGeneration

import corellm_internvl.tiny
import corellm_kosmos2.tiny
from corellm import LLM, SamplingParams
from corellm.cli import main
from corellm.errors import CheckpointError, ConfigError
from corellm.outputs import CompletionOutput
from corellm_kernels.grouped_linear import ToGroups
from corellm_kernels.int8_linear import round_rows
from corellm_llava.tiny import make_tiny_checkpoint
from corellm_quantization import int4
from corellm_quantization.published import published
from corellm_quantization.rounding import BITS, grid_of_files, round_groups
from corellm_quantization.writing.checkpoint import _put, write_quantized
from corellm_quantization.writing.choice import Wanted
from corellm_quantization.writing.layout import Groups, Size, _packed
from corellm_quantization.writing.unfinished import unfinished_folder
from corellm_testing import tiny_text
from corellm_transformers.tiny import make_tiny_checkpoint as make_generic_checkpoint
from extensions.quantization.tests.oracle import greedy
from tests.fixtures import random_image

PARAMS = SamplingParams(temperature=0, max_tokens=6, logprobs=3, ignore_eos=True)
REQUEST = {"prompt": "USER: <image>\nWhat shape? ASSISTANT:", "multi_modal_data": {"image": random_image(60, 50, 1)}}
WANTED = Wanted(group=32, eight=[r"layers\.1\..*down_proj"], ignore=["k_proj"])
TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@pytest.fixture(scope="module")
def written(tiny_llava: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny checkpoint in 4 bits, one layer in 8, some as they are."""
    path = tmp_path_factory.mktemp("written") / "checkpoint"
    write_quantized(str(tiny_llava), path, WANTED)
    return path


def layers(path: Path) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """Names and tensors of the layers that were rounded."""
    tensors = load_file(path / "model.safetensors")
    for name in tensors:
        if name.endswith(".weight_packed"):
            stem = name.removesuffix("weight_packed")
            yield stem[:-1], {key.removeprefix(stem): value for key, value in tensors.items() if key.startswith(stem)}


def output_of(path: Path, **options: str) -> CompletionOutput:
    """What corellm says."""
    with LLM(str(path), dtype="float32", **options) as llm:
        return llm.generate(REQUEST, PARAMS, use_tqdm=False)[0].outputs[0]


@settings(max_examples=40, deadline=None)
@given(bits=st.sampled_from([4, 8]), n=st.integers(1, 20), k=st.integers(1, 70), seed=st.integers(0, 99))
def test_words_are_those_of_the_formats_package(bits: int, n: int, k: int, seed: int) -> None:
    integers = torch.randint(2**bits, (n, k), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    unpacked = unpack_from_int32(_packed(integers, bits), bits, torch.Size((n, k)))
    assert torch.equal(unpacked.int() + 2 ** (bits - 1), integers.int())


@pytest.mark.parametrize("zeros", [False, True], ids=["", "zeros"])
@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
def test_the_formats_package_reads_what_was_rounded(dtype: torch.dtype, zeros: bool) -> None:
    """Its weight is ours, to the last bit: for rows that are no whole word, and groups of zeros and of tiny values."""
    weight = torch.randn(13, 96, generator=torch.Generator().manual_seed(0)).to(dtype)
    weight[2, :32] = 0
    weight[3, 32:64] *= 1e-6
    layout = Groups(32, zeros)
    tensors = dict(layout.rounded(weight))
    scheme = QuantizationScheme(targets=["Linear"], weights=dict(layout.stated()))
    theirs = BaseCompressor.load_from_registry("pack-quantized").decompress(dict(tensors), scheme)["weight"]
    ours = round_groups(weight, 32, grid_of_files(dtype, symmetric=not zeros)).widened()
    assert torch.equal(theirs, ours.to(dtype))
    assert (ours - weight.float()).norm() < 0.12 * weight.float().norm()
    sizes = {name: Size(tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}
    assert sizes == layout.sizes(Size(weight.dtype, tuple(weight.shape)))


def test_layers_have_the_bits_that_were_wanted(tiny_llava: Path, written: Path) -> None:
    """Those of 8 bits have the integers and factors of `quantization="int8"`; all else is as it was, byte for byte."""
    stated = json.loads((written / "config.json").read_text())["quantization_config"]
    source, found = load_file(tiny_llava / "model.safetensors"), published(stated)
    assert found is not None
    bits = {}
    for name, tensors in layers(written):
        weight, read = source.pop(f"{name}.weight"), found.read(tensors)
        assert not isinstance(read, Tensor)
        bits[name.partition("language_model.")[2].removeprefix("model.")] = read.bits
        if read.bits == 8:
            integers, factors = round_rows(weight)
            assert torch.equal(tensors["weight_scale"][:, 0], factors)
            assert torch.equal(read.integers.int() - 128, integers.int())
        else:
            assert torch.equal(
                read.widened(), round_groups(weight, 32, grid_of_files(weight.dtype, symmetric=True)).widened()
            )
    four = ["self_attn.q_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj"]
    wanted = {f"layers.{layer}.{name}": 4 for layer in (0, 1) for name in four}
    assert bits == wanted | {"layers.0.mlp.down_proj": 4, "layers.1.mlp.down_proj": 8}
    left = load_file(written / "model.safetensors")
    assert all(torch.equal(left[name], value) for name, value in source.items())
    same = {file.name for file in tiny_llava.iterdir()} - {"model.safetensors", "config.json"}
    assert all((written / name).read_bytes() == (tiny_llava / name).read_bytes() for name in same)
    assert written.stat().st_mode & 0o777 == 0o777 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_words_of_another_number_of_bits_are_refused(written: Path) -> None:
    found = published(json.loads((written / "config.json").read_text())["quantization_config"])
    assert found is not None
    _, tensors = next(layers(written))
    with pytest.raises(CheckpointError, match=r"words of 32 bits for \d+ x \d+ integers of \[4, 8\] bits"):
        found.read(tensors | {"weight_packed": tensors["weight_packed"][:, :-1]})


def test_transformers_gives_the_same(written: Path) -> None:
    """Read by the package compressed-tensors: the same tokens and log-probabilities, up to sums in float32."""
    ours = output_of(written)
    model = LlavaForConditionalGeneration.from_pretrained(written, dtype=torch.float32).eval()
    inputs = AutoProcessor.from_pretrained(written)(
        images=REQUEST["multi_modal_data"]["image"], text=REQUEST["prompt"], return_tensors="pt"
    )
    tokens, logprobs = greedy(model, inputs)
    assert ours.token_ids == tokens
    assert ours.logprobs is not None
    for step, wanted in zip(ours.logprobs, logprobs, strict=True):
        assert all(abs(found.logprob - wanted[token].item()) < 2e-3 for token, found in step.items())


def test_it_is_the_model_that_is_rounded_when_it_is_loaded(
    tiny_llava: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, if zeros and scales are those that files can have; encoders are rounded by the second load, too."""
    write_quantized(str(tiny_llava), tmp_path / "made", Wanted(zeros=True))
    finer = output_of(tiny_llava, quantization="int4")
    rounding = partial(round_groups, group=int4.GROUP, grid=grid_of_files(torch.float32, symmetric=False))
    monkeypatch.setattr(int4, "_TO_GROUPS", ToGroups(rounding, int4.GROUP, BITS))
    at_load, from_files = (output_of(path, quantization="int4") for path in (tiny_llava, tmp_path / "made"))
    assert (from_files.token_ids, from_files.logprobs) == (at_load.token_ids, at_load.logprobs)
    assert finer.logprobs != at_load.logprobs


@pytest.mark.parametrize(
    "make",
    [
        tiny_text.make_tiny_checkpoint,  # whose checks at load wait for values
        corellm_kosmos2.tiny.make_tiny_checkpoint,  # whose code initializes weights of layers by their names
    ],
    ids=["text", "kosmos2"],
)
def test_text_models_and_models_that_name_their_layers_are_written_and_run(
    make: Callable[[Path], Path], tmp_path: Path
) -> None:
    source = make(tmp_path / "source")
    write_quantized(str(source), tmp_path / "made", Wanted(bits=8))
    first = [_first(path) for path in (source, tmp_path / "made")]
    assert first[1] == (first[0][0], pytest.approx(first[0][1], abs=0.1))


def _first(path: Path) -> tuple[int, float]:
    """The first token of a text, and its log-probability."""
    with LLM(str(path), dtype="float32", max_model_len=256, num_kv_blocks=60) as llm:
        output = llm.generate("hello world", PARAMS, use_tqdm=False)[0].outputs[0]
    assert output.logprobs is not None
    return output.token_ids[0], output.logprobs[0][output.token_ids[0]].logprob


def test_a_weight_that_its_module_multiplies_with_stays_and_is_widened_where_others_round_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Mamba mixer never runs its `dt_proj`: as llm-compressor would, the second checkpoint has it in 8 bits, too."""
    source = tiny_text.make_tiny_checkpoint(
        tmp_path / "source", architecture="FalconMambaForCausalLM", state_size=16, tie_word_embeddings=False
    )
    written = write_quantized(str(source), tmp_path / "made", Wanted(bits=8)).choice
    parts = ("in_proj", "x_proj", "out_proj")
    assert set(written.written) == {f"backbone.layers.{layer}.mixer.{part}" for layer in (0, 1) for part in parts}
    assert "backbone.layers.0.mixer.dt_proj" in written.ignored
    monkeypatch.setattr("corellm_quantization.writing.choice.is_run", lambda *_: True)
    others = write_quantized(str(source), tmp_path / "others", Wanted(bits=8)).choice
    assert "backbone.layers.1.mixer.dt_proj" in others.written
    first = [_first(path) for path in (source, tmp_path / "made", tmp_path / "others")]
    assert first[1:] == [(first[0][0], pytest.approx(first[0][1], abs=0.1))] * 2


def test_routers_and_experts_are_stated_as_left_alone(tmp_path: Path) -> None:
    """By the matching of the format's package, as other engines do it: by names in files, and those of one expert."""
    source = tiny_text.make_tiny_checkpoint(
        tmp_path / "source", architecture="MixtralForCausalLM",
        num_key_value_heads=2, intermediate_size=32, num_local_experts=4,
    )  # fmt: skip
    write_quantized(str(source), tmp_path / "made", Wanted(bits=8))
    ignored = json.loads((tmp_path / "made" / "config.json").read_text())["quantization_config"]["ignore"]
    linear = nn.Linear(1, 1)
    stems = {name.removesuffix(".weight") for name in load_file(source / "model.safetensors")}
    left = [stem for stem in stems if "block_sparse_moe" in stem]
    assert len(left) == 2 * (1 + 4 * 3)
    left += ["lm_head", "model.layers.0.mlp.gate", "model.layers.0.block_sparse_moe.experts.0.gate_proj"]
    assert not any(is_match(name, linear, ["Linear"], ignored) for name in left)
    assert all(is_match(name, linear, ["Linear"], ignored) for name, _ in layers(tmp_path / "made"))


def test_a_checkpoint_that_its_adapter_would_refuse_is_not_written(tmp_path: Path) -> None:
    source = corellm_internvl.tiny.make_tiny_checkpoint(tmp_path / "source")
    with pytest.raises(
        CheckpointError, match=r"source: .* would not be loaded, so none is written; .* \(config.json: "
    ):
        write_quantized(str(source), tmp_path / "made", Wanted(bits=8))
    assert [*tmp_path.iterdir()] == [source]


def test_a_configuration_whose_text_is_a_number_is_refused(tiny_llava: Path, tmp_path: Path) -> None:
    source = shutil.copytree(tiny_llava, tmp_path / "source")
    stated = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(stated | {"text_config": 5}))
    with pytest.raises(CheckpointError, match=r"source: config.json cannot be read"):
        write_quantized(str(source), tmp_path / "made", WANTED)


def test_files_beside_the_weights_are_copied_and_others_are_named(
    tiny_llava: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = shutil.copytree(tiny_llava, tmp_path / "source")
    (source / "adapter").mkdir()
    copied = ["voices.pt", "modeling_own.py", "chat_template.jinja", "adapter/adapter_model.safetensors"]
    for name in [*copied, "pytorch_model.bin", "optimizer.pt", "other.safetensors", ".hidden"]:
        (source / name).write_bytes(b"other")
    assert main(["quantize", str(source), "-o", str(tmp_path / "made")]) == 0
    assert "\nnot copied: optimizer.pt, other.safetensors, pytorch_model.bin\n" in capsys.readouterr().out
    assert all((tmp_path / "made" / name).read_bytes() == b"other" for name in copied)
    there = {str(path.relative_to(source)) for path in source.rglob("*")}
    made = {str(path.relative_to(tmp_path / "made")) for path in (tmp_path / "made").rglob("*")}
    assert there - made == {"pytorch_model.bin", "optimizer.pt", "other.safetensors", ".hidden"}
    (source / "merges.md").symlink_to("nowhere")
    with pytest.raises(CheckpointError, match=r"source/merges.md cannot be read: No such file"):
        write_quantized(str(source), tmp_path / "again", WANTED)
    (source / "merges.md").unlink()
    os.mkfifo(source / "merges.md")
    with pytest.raises(CheckpointError, match=r"source/merges.md cannot be read: .* is a named pipe"):
        write_quantized(str(source), tmp_path / "again", WANTED)
    assert not (tmp_path / "again").exists()


def test_folders_of_killed_runs_are_removed_and_those_of_running_ones_stay(tmp_path: Path) -> None:
    killed, running, other = (tmp_path / name for name in (".a-unfinished-1", ".a-unfinished-2", ".b-unfinished-3"))
    for folder in (killed, running, other):
        folder.mkdir()
        (folder / "config.json").write_text("{}")
    lock = os.open(running, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with unfinished_folder(tmp_path / "a") as made, unfinished_folder(tmp_path / "a") as beside:
        assert {*tmp_path.iterdir()} == {running, other, made, beside}
    os.close(lock)
    with unfinished_folder(tmp_path / "a") as made:
        assert {*tmp_path.iterdir()} == {other, made}
        made.rename(tmp_path / "a")
    assert {*tmp_path.iterdir()} == {other, tmp_path / "a"}


def test_an_unfinished_folder_waits_for_no_lock_of_others_and_is_made_again_where_it_was_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever may read the folder around it may lock that; one that is not locked yet looks as if it were left."""
    make, made = tempfile.mkdtemp, []

    def make_and_lose(**options: Any) -> str:
        made.append(make(**options))
        if len(made) == 1:
            os.rmdir(made[0])
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", make_and_lose)
    lock = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with unfinished_folder(tmp_path / "a") as folder:
        assert [str(folder)] == made[1:] == [str(path) for path in tmp_path.iterdir()]
    os.close(lock)
    assert not [*tmp_path.iterdir()]


def test_files_are_bounded(tiny_llava: Path, written: Path, tmp_path: Path) -> None:
    """Several files have what one has, and load; the bar ends at the whole."""
    shown = []
    report = write_quantized(
        str(tiny_llava), tmp_path / "made", WANTED,
        shard_bytes=60_000, progress=lambda done, total: shown.append((done, total)),
    )  # fmt: skip
    files = sorted((tmp_path / "made").glob("*.safetensors"))
    tensors = [load_file(file) for file in files]
    assert len(files) > 2
    assert all(len(part) == 1 or sum(x.nbytes for x in part.values()) <= 60_000 for part in tensors)
    index = json.loads((tmp_path / "made" / "model.safetensors.index.json").read_text())
    assert index["weight_map"] == {name: file.name for file, part in zip(files, tensors, strict=True) for name in part}
    assert index["metadata"]["total_size"] == sum(x.nbytes for part in tensors for x in part.values())
    whole, together = load_file(written / "model.safetensors"), {k: v for part in tensors for k, v in part.items()}
    assert whole.keys() == together.keys()
    assert all(torch.equal(value, together[name]) for name, value in whole.items())
    assert shown[-1][0] == shown[-1][1] == sum(x.nbytes for x in load_file(tiny_llava / "model.safetensors").values())
    assert report.bytes_after == sum(file.stat().st_size for file in files) < 0.8 * report.bytes_before
    again = tmp_path / "again"
    with pytest.raises(CheckpointError, match="is quantized already"):
        write_quantized(str(tmp_path / "made"), again, WANTED)
    assert not again.exists()


def test_what_ends_early_leaves_nothing(tiny_llava: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a checkpoint nor a folder beside it; what was there stays."""
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "config.json").write_text("{}")

    def interrupted(done: int, total: int) -> None:
        raise KeyboardInterrupt

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(KeyboardInterrupt):
        write_quantized(str(tiny_llava), tmp_path / "made", WANTED, force=True, progress=interrupted)
    monkeypatch.setattr("corellm_quantization.writing.checkpoint.write_shards", full)
    with pytest.raises(CheckpointError, match="other cannot be written: No space left on device"):
        write_quantized(str(tiny_llava), tmp_path / "other", WANTED)
    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(CheckpointError, match=r"other cannot be written: \[Errno 28\] No space left on device$"):
        write_quantized(str(tiny_llava), tmp_path / "other", WANTED)
    assert [path.name for path in tmp_path.rglob("*")] == ["made", "config.json"]


def test_a_model_without_linear_layers_to_round_is_refused_with_the_way_out(tmp_path: Path) -> None:
    """GPT-2's weights have a row for each input, which the format has not."""
    source = tiny_text.make_tiny_checkpoint(tmp_path / "source", architecture="GPT2LMHeadModel")
    with pytest.raises(ConfigError, match=r"no linear layer .* a row for each input.*quantization='int8' or 'int4'"):
        write_quantized(str(source), tmp_path / "made", WANTED)


def test_weights_are_those_that_are_loaded(tiny_llava: Path, written: Path, tmp_path: Path) -> None:
    """Where one file has all, an index beside it names others, as one that was left when they were joined."""
    source = shutil.copytree(tiny_llava, tmp_path / "source")
    others = {name: torch.zeros_like(value) for name, value in load_file(source / "model.safetensors").items()}
    save_file(others, source / "left.safetensors")
    (source / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": dict.fromkeys(others, "left.safetensors")})
    )
    write_quantized(str(source), tmp_path / "made", WANTED)
    assert (tmp_path / "made" / "model.safetensors").read_bytes() == (written / "model.safetensors").read_bytes()
    assert output_of(source).token_ids == output_of(tiny_llava).token_ids


def test_what_came_to_the_folder_meanwhile_stays(tiny_llava: Path, tmp_path: Path) -> None:
    """As of a second command that was faster."""
    target = tmp_path / "made"

    def overtake(done: int, total: int) -> None:
        target.mkdir(exist_ok=True)
        (target / "kept.txt").write_text("mine")

    with pytest.raises(ConfigError, match=r"made is there already; .*--force"):
        write_quantized(str(tiny_llava), target, WANTED, progress=overtake)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["kept.txt", "made"]


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), KeyboardInterrupt()], ids=["fails", "interrupted"])
def test_a_checkpoint_that_could_not_be_replaced_stays(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, target = tmp_path / "unfinished", tmp_path / "made"
    for folder in (made, target):
        folder.mkdir()
        (folder / "name").write_text(folder.name)
    rename = Path.rename

    def fails(path: Path, to: Path) -> Path:
        if path == made:
            raise error
        return rename(path, to)

    monkeypatch.setattr(Path, "rename", fails)
    with pytest.raises(type(error)):
        _put(made, target)
    assert (target / "name").read_text() == "made"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made", "unfinished"]


def test_only_a_checkpoint_is_replaced_and_only_with_force(
    tiny_llava: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "made"
    target.mkdir()
    (target / "kept.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"made is there already; .*--force"):
        write_quantized(str(tiny_llava), target, WANTED)
    with pytest.raises(ConfigError, match=r"has no config.json, so it is no checkpoint"):
        write_quantized(str(tiny_llava), target, WANTED, force=True)
    (target / "config.json").write_text("{}")
    write_quantized(str(tiny_llava), target, WANTED, force=True)
    assert not (target / "kept.txt").exists()
    assert (target / "model.safetensors").is_file()
    assert list(tmp_path.iterdir()) == [target]
    with pytest.raises(ConfigError, match="is the checkpoint itself, or has it inside"):
        write_quantized(str(tiny_llava), tiny_llava.parent, WANTED, force=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="a folder demo would be taken for the model demo from now on"):
        write_quantized("demo", Path("demo"), WANTED)
    for nameless in (Path(), Path("..")):
        with pytest.raises(ConfigError, match="name a folder inside"):
            write_quantized(str(tiny_llava), nameless, WANTED, force=True)
    with pytest.raises(ConfigError, match="there is no directory"):
        write_quantized(str(tiny_llava), tmp_path / "not" / "there", WANTED)
    monkeypatch.setattr(Path, "is_mount", lambda path: path == target)
    with pytest.raises(ConfigError, match="made is a mount point"):
        write_quantized(str(tiny_llava), target, WANTED, force=True)


@pytest.mark.parametrize("architecture", ["Glm4vForConditionalGeneration", "WhisperForConditionalGeneration"])
def test_models_of_the_generic_adapter_are_written(architecture: str, tmp_path: Path) -> None:
    """Though it compares a model with its own forward pass, and there are no values yet: the decoder is rounded."""
    source = make_generic_checkpoint(tmp_path / "source", architecture=architecture)
    model: Any = getattr(transformers, architecture).from_pretrained(source)
    inside = set(model.get_decoder().modules())
    linears = {name for name, part in model.named_modules() if isinstance(part, nn.Linear) and part in inside}
    assert set(write_quantized(str(source), tmp_path / "made", Wanted(bits=8)).choice.written) == linears


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"bits": 3}, "bits must be 4 or 8, got 3"),
        ({"group": 48}, "group must be one of 32, 64, 128, got 48"),
        ({"ignore": ["("]}, r"'\(' is no regular expression"),
        ({"ignore": ["nowhere"]}, r"--ignore nowhere: found in the name of no linear layer; such a name is model\."),
        ({"eight": ["vision_tower"]}, "--8-bits vision_tower: .* no linear layer that can be rounded; such a name is"),
        ({"bits": 8, "zeros": True}, "zeros are for weights of 4 bits; leave them out with 8 bits"),
        ({"bits": 8, "group": 32}, "group and zeros are for weights of 4 bits"),
        ({"ignore": ["."]}, "no linear layer of the decoder is left"),
        ({"group": 128, "ignore": ["down_proj"]}, r"no linear layer .* whole groups of 128"),
    ],
)
def test_wishes_that_fit_nothing_are_refused(
    wanted: dict[str, object], message: str, tiny_llava: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        write_quantized(str(tiny_llava), tmp_path / "made", Wanted(**wanted))  # type: ignore[arg-type]
    assert not any(tmp_path.iterdir())


def test_the_command_writes_an_output_layer_of_8_bits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And says what it wrote; a model of which only that layer has whole groups loads."""
    source = make_tiny_checkpoint(tmp_path / "source")
    assert main(["quantize", str(source), "-o", str(tmp_path / "made"), "--bits", "8", "--8-bits", "lm_head"]) == 0
    said = capsys.readouterr().out
    assert "15 linear layers in 8 bits; left as they are: embeddings, norms, model.vision_tower" in said
    assert "lm_head" not in said
    assert len(output_of(tmp_path / "made").token_ids) == 6
    assert main(["quantize", str(source), "-o", str(tmp_path / "made")]) == 1
    assert "is there already" in capsys.readouterr().err
