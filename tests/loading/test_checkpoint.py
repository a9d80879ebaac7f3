"""Opening checkpoints: when their code runs, which errors they cause, tokenizers and overrides from elsewhere."""

from __future__ import annotations

import io
import json
import logging
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import dynamic_module_utils as transformers_code

from corellm import LLM, SamplingParams
from corellm.config import ModelConfig
from corellm.errors import CheckpointError, ConfigError, PluginNotFoundError
from corellm.loading import checkpoint as checkpoints
from corellm.loading.missing_torchvision import way_out
from corellm.loading.remote_code import no_questions
from corellm.modelling import renamed
from corellm.modelling.checkpoint_files import check_files
from corellm.modelling.weights import check_names, check_weights, fill_weights
from corellm_qwen_vl.tiny import make_tiny_checkpoint as make_qwen_vl
from tests.fixtures import random_image

GREEDY = SamplingParams(temperature=0, max_tokens=4)


@pytest.fixture
def checkpoint(tiny_llava: Path, tmp_path: Path) -> Path:
    """A copy of the tiny LLaVA, for the test to break."""
    return Path(shutil.copytree(tiny_llava, tmp_path / "checkpoint"))


def edit(file: Path, **changes: Any) -> None:
    """Change keys of a JSON file; None removes one."""
    stated = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({key: value for key, value in stated.items() if value is not None}))


# --- the checkpoint's own code ------------------------------------------------------------------------------------


@pytest.fixture
def willing_stdin(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """Standard input that says yes to every question."""
    stdin = io.StringIO("y\n" * 20)
    monkeypatch.setattr(sys, "stdin", stdin)
    return stdin


FACTORIES = {
    "processor": ("processor_config.json", "AutoProcessor", {"processor_class": "TheirProcessor"}),
    "image processor": ("processor_config.json", "AutoImageProcessor", {}),
    "tokenizer": ("tokenizer_config.json", "AutoTokenizer", {"tokenizer_class": "TheirTokenizer"}),
    "configuration": ("config.json", "AutoConfig", {"model_type": "theirs"}),
}


def bring_code(checkpoint: Path, part: str, ran: Path) -> None:
    """Have a part of the checkpoint be Python code, which leaves a file where it ran."""
    file, auto_class, changes = FACTORIES[part]
    code = "their_code.Theirs" if part != "tokenizer" else ["their_code.Theirs", None]
    (checkpoint / "their_code.py").write_text(
        f"import transformers\nopen({str(ran)!r}, 'w').close()\nclass Theirs(transformers.LlavaProcessor):\n    pass\n"
    )
    if part == "image processor":
        settings = json.loads((checkpoint / file).read_text())["image_processor"]
        edit(
            checkpoint / file,
            image_processor={**settings, "image_processor_type": "Their", "auto_map": {auto_class: code}},
        )
    else:
        edit(checkpoint / file, auto_map={auto_class: code}, **changes)


@pytest.mark.parametrize("part", FACTORIES)
def test_a_checkpoints_code_does_not_run_unasked(
    checkpoint: Path, tmp_path: Path, willing_stdin: io.StringIO, part: str
) -> None:
    """Whatever part of a checkpoint is Python code, it is refused by name, and standard input is not read.

    A tokenizer whose class is unknown is read from `tokenizer.json` by transformers' own.
    """
    ran = tmp_path / "ran"
    bring_code(checkpoint, part, ran)
    refused = pytest.raises(CheckpointError, match="trust_remote_code=True")
    with nullcontext() if part == "tokenizer" else refused:
        LLM(str(checkpoint)).close()
    assert not ran.exists()
    assert willing_stdin.tell() == 0


def test_a_checkpoints_code_runs_where_the_operator_said_so(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`trust_remote_code=True` is passed on to the processor, which is then the checkpoint's."""
    monkeypatch.setattr(transformers_code, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    ran = tmp_path / "ran"
    bring_code(checkpoint, "processor", ran)
    with LLM(str(checkpoint), trust_remote_code=True) as llm:
        assert type(llm.engine.context.hf_processor).__name__ == "Theirs"
    assert ran.exists()


def test_an_adapters_own_call_asks_nothing(checkpoint: Path, tmp_path: Path, willing_stdin: io.StringIO) -> None:
    """A factory that leaves the flag out fails instead of asking; afterwards transformers is as it was."""
    import transformers

    bring_code(checkpoint, "processor", tmp_path / "ran")
    before = transformers_code.TIME_OUT_REMOTE_CODE
    with pytest.raises(CheckpointError, match="trust_remote_code=True"):
        checkpoints.load_tokenizer(
            checkpoint, lambda path: transformers.AutoProcessor.from_pretrained(path), trust_remote_code=False
        )
    with no_questions(), no_questions():
        pass
    assert not (tmp_path / "ran").exists()
    assert willing_stdin.tell() == 0
    assert before == transformers_code.TIME_OUT_REMOTE_CODE > 0


@pytest.mark.parametrize("trusted", [False, True])
def test_hub_checkpoints_come_with_their_code_only_where_it_may_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, trusted: bool
) -> None:
    """Python files are downloaded with `trust_remote_code`, and only with it."""
    import huggingface_hub

    asked: dict[str, Any] = {}

    def download(name: str, **arguments: Any) -> str:
        asked.update(arguments, name=name)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    (tmp_path / "config.json").touch()
    config = ModelConfig(model="some/model", revision="v1", trust_remote_code=trusted)
    assert checkpoints.resolve_checkpoint(config) == tmp_path
    assert (asked["name"], asked["revision"]) == ("some/model", "v1")
    assert ("*.py" in asked["allow_patterns"]) is trusted


# --- broken files ---------------------------------------------------------------------------------------------------

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 12345\n"


def with_header(edit_header: Callable[[dict[str, Any]], None]) -> Callable[[bytes], bytes]:
    """Change a safetensors file's header, and nothing else."""

    def change(whole: bytes) -> bytes:
        end = 8 + int.from_bytes(whole[:8], "little")
        header = json.loads(whole[8:end])
        edit_header(header)
        written = json.dumps(header).encode()
        return len(written).to_bytes(8, "little") + written + whole[end:]

    return change


def overlap(header: dict[str, Any]) -> None:
    first, second = [name for name in header if name != "__metadata__"][:2]
    header[first]["data_offsets"] = header[second]["data_offsets"]


def foreign_type(header: dict[str, Any]) -> None:
    header[max(header)]["dtype"] = "X9"


def wrong_shape(header: dict[str, Any]) -> None:
    header[max(header)]["shape"] = [1, 1, 3]


WEIGHTS = "model.safetensors"
BREAKS: dict[str, tuple[str, Callable[[bytes], bytes], str]] = {
    "pointer for weights": (WEIGHTS, lambda _: POINTER, r"LFS pointer, .*git lfs pull"),
    "pointer for the tokenizer": ("tokenizer.json", lambda _: POINTER, "tokenizer.json is a Git LFS"),
    "pointer for a configuration": ("processor_config.json", lambda _: POINTER, "processor_config.json is a Git LFS"),
    "weights end early": (WEIGHTS, lambda whole: whole[:-100], "cannot be read.*truncated or damaged"),
    "header ends early": (WEIGHTS, lambda whole: whole[:100], "cannot be read"),
    "no weights in it": (WEIGHTS, lambda _: b"", r"cannot be read: .*\(0 bytes\)"),
    "huge header": (WEIGHTS, lambda whole: (2**60).to_bytes(8, "little") + whole[8:], "header too large"),
    "overlapping": (WEIGHTS, with_header(overlap), "cannot be read"),
    "foreign type": (WEIGHTS, with_header(foreign_type), "cannot be read"),
    "wrong shape": (WEIGHTS, with_header(wrong_shape), "cannot be read"),
    "config.json": ("config.json", lambda whole: whole[:200], "config.json: .*readable JSON"),
    "a list": ("generation_config.json", lambda _: b"[]", "generation_config.json: .*a list"),
    "nested": ("tokenizer_config.json", lambda _: b"[" * 10**6, "tokenizer_config.json: .*readable JSON"),
    "not text": ("processor_config.json", lambda _: b"\xff\xfe{}", "processor_config.json: .*readable JSON"),
    "tokenizer ends early": ("tokenizer.json", lambda whole: whole[:-9], r"tokenizer.json: .*end is missing"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_broken_files_are_named(checkpoint: Path, name: str) -> None:
    """File and reason, in one line, before the model is read."""
    file, change, message = BREAKS[name]
    (checkpoint / file).write_bytes(change((checkpoint / file).read_bytes()))
    with pytest.raises(CheckpointError, match=message) as caught:
        LLM(str(checkpoint))
    assert str(checkpoint) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_index_is_held_against_its_files(checkpoint: Path) -> None:
    """A shard that is not there, a tensor that is not in its shard, and an index that is none."""
    index = checkpoint / "model.safetensors.index.json"
    with safe_open(checkpoint / WEIGHTS, framework="np") as weights:
        names = sorted(weights.keys())
    index.write_text(json.dumps({"weight_map": dict.fromkeys(names, WEIGHTS)}))
    check_files(checkpoint)
    index.write_text(json.dumps({"weight_map": dict.fromkeys([*names, "lm_head.bias"], WEIGHTS)}))
    with pytest.raises(CheckpointError, match=r"model.safetensors lacks lm_head.bias, .*index.json"):
        check_files(checkpoint)
    index.write_text(json.dumps({"weight_map": {names[0]: "model-2.safetensors"}}))
    with pytest.raises(CheckpointError, match=r"model-2.safetensors, .*index.json"):
        check_files(checkpoint)
    index.write_text("{}")
    with pytest.raises(CheckpointError, match="readable index"):
        check_files(checkpoint)
    check_files(checkpoint, weights=False)


@pytest.mark.parametrize("name", ["model.safetensors", "chat_template.jinja"])
def test_links_to_deleted_files_are_named(checkpoint: Path, name: str) -> None:
    """As in a hub cache whose blobs were deleted."""
    (checkpoint / name).unlink(missing_ok=True)
    (checkpoint / name).symlink_to(checkpoint / "deleted")
    with pytest.raises(CheckpointError, match=f"{name} .*download"):
        check_files(checkpoint)


@pytest.mark.parametrize("name", ["~no-such-user/model", "x" * 5000, "owner/" + "x" * 5000, "no owner/no model"])
def test_impossible_names(name: str, tmp_path: Path) -> None:
    """Names that are neither a path nor a hub name are a CheckpointError, as a model and as a tokenizer."""
    with pytest.raises(CheckpointError, match=f"no model '{name}'"):
        checkpoints.resolve_checkpoint(ModelConfig(model=name))
    with pytest.raises(CheckpointError, match=f"no tokenizer '{name}'"):
        checkpoints.resolve_tokenizer(ModelConfig(model="demo", tokenizer=name), tmp_path)


def test_files_that_are_not_read_may_be_anything(checkpoint: Path) -> None:
    """Other formats' weights beside ours, and notes, are ignored."""
    (checkpoint / "consolidated.safetensors").write_bytes(POINTER)
    (checkpoint / "notes.json").write_text("[1, 2")
    LLM(str(checkpoint)).close()


NORM = "language_model.model.norm.weight"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({NORM: None}, "lacks .*norm.weight"),
        ({NORM: (3, 3)}, r"another shape .*norm.weight \[3, 3\] \(.*\["),
        ({NORM.replace("norm", "more"): (1,)}, "no place .*more.weight"),
        ({"language_model.model.layers.9.mlp.up_proj.weight": (1,)}, "no place .*layers.9.mlp.up_proj"),
    ],
)
def test_weights_of_another_model(checkpoint: Path, changes: dict[str, Any], message: str) -> None:
    """Whole files that do not fit the model: which weight, and its shapes."""
    weights = load_file(checkpoint / WEIGHTS)
    for name, shape in changes.items():
        weights.pop(name, None)
        if shape is not None:
            weights[name] = torch.zeros(shape)
    save_file(weights, checkpoint / WEIGHTS, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=message):
        LLM(str(checkpoint))


def test_weights_of_no_module_are_left_out(
    checkpoint: Path, tiny_llava: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A value head, what older transformers wrote, a trainer's: one warning names them, and outputs stay the same."""
    surplus = {
        "v_head.summary.weight": torch.zeros(1, 64),
        "language_model.model.layers.0.self_attn.other.inv_freq": torch.zeros(4),
        "vision_tower.vision_model.embeddings.position_ids": torch.zeros(1, 5, dtype=torch.long),
        "optimizer.state.0.exp_avg": torch.zeros(3),
    }
    save_file(load_file(checkpoint / WEIGHTS) | surplus, checkpoint / WEIGHTS, metadata={"format": "pt"})
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    with caplog.at_level("WARNING"), LLM(str(checkpoint)) as llm:
        (told,) = [record.getMessage() for record in caplog.records if "v_head" in record.getMessage()]
        found = tokens(llm)
    assert "optimizer.state.0.exp_avg" in told
    assert "LOAD REPORT" not in caplog.text
    with LLM(str(tiny_llava)) as plain:
        assert found == tokens(plain)


@pytest.mark.parametrize(
    ("prefix", "name", "is_used"),
    [
        ("model", "model.layers.2.mlp.weight", True),
        ("model", "layers.2.mlp.weight", True),  # of a checkpoint of the inner model
        ("model", "model.extra.weight", True),
        ("model", "score.weight", False),
        ("", "model.layers.0.mlp.scale", True),
        ("", "v_head.weight", False),
        ("", "v_head.0.weight", False),
        ("", "h.0.attn.weight", False),  # a whole stack of layers beside the model's own
        ("model", "h.0.attn.weight", False),
        ("", "transformer.h.0.attn.weight", True),  # a published name that an adapter has no other for
        ("", "model.layers.0.rotary_emb.inv_freq", False),
    ],
)
def test_which_surplus_weights_a_model_would_use(tmp_path: Path, prefix: str, name: str, is_used: bool) -> None:
    """One in a module that the model has, or where a layer would be, is refused."""
    wanted = {"model.layers.0.mlp.weight": torch.zeros(1), "lm_head.weight": torch.zeros(1)}
    with pytest.raises(CheckpointError, match="no place for: " + re.escape(name)) if is_used else nullcontext():
        check_names(tmp_path, wanted, missing=(), surplus=[name], misshapen=(), prefix=prefix)
    if not prefix:
        save_file(wanted | {name: torch.zeros(1)}, tmp_path / WEIGHTS)
        with nullcontext() if not is_used else pytest.raises(CheckpointError):
            fill_weights(tmp_path, wanted, lambda name: (name,))


def test_weights_go_to_their_places(tmp_path: Path) -> None:
    """A published one may be several of a model's, one behind the other, or a part of one, or have no use."""
    sizes = {"qkv": (5, 2), "old": (3, 2), "new": (1, 2), "constant": (2,)}
    published = {name: torch.randn(size) for name, size in sizes.items()}
    save_file(published, tmp_path / WEIGHTS)
    table, q, k, v = (torch.zeros(rows, 2, dtype=torch.bfloat16) for rows in (4, 3, 1, 1))
    places = {"q": q, "k": k, "v": v, "old": table[:3], "new": table[3:]}
    names = renamed({r"(q)(k)(v)$": [r"\1", r"\2", r"\3"], "const": ()})
    fill_weights(tmp_path, places, names)
    assert torch.equal(torch.cat([q, k, v]), published["qkv"].bfloat16())
    assert torch.equal(table, torch.cat([published["old"], published["new"]]).bfloat16())
    for wrong, words in (
        ({"k": torch.zeros(2, 2)}, r"qkv \[5, 2\] \(the model has \[6, 2\]\)"),
        ({"other": torch.zeros(1)}, "lacks .*: other"),
    ):
        with pytest.raises(CheckpointError, match=words):
            fill_weights(tmp_path, places | wrong, names)


def test_an_adapter_of_before_checks_its_weights(tmp_path: Path) -> None:
    """The old function works, says what to use, and takes out what no module misses."""
    wanted, found = {"a": torch.zeros(2)}, {"a": torch.zeros(2), "v_head.weight": torch.zeros(1)}
    with pytest.warns(DeprecationWarning, match="load_published"):
        check_weights(tmp_path, wanted, found)
    assert [*found] == ["a"]
    with pytest.warns(match="load_published"), pytest.raises(CheckpointError, match=r"a \[3\] \(the model has \[2\]\)"):
        check_weights(tmp_path, wanted, {"a": torch.zeros(3)})


def test_a_layer_too_many_of_a_whole_model_in_its_inner_one(tmp_path: Path) -> None:
    """Names of the inner model have no prefix there; those of the checkpoint do."""
    wanted = ["encoder.layer.0.weight"]
    with pytest.raises(CheckpointError, match=r"no place .*bert\.encoder\.layer\.1"):
        check_names(tmp_path, wanted, missing=(), surplus=["bert.encoder.layer.1.weight"], misshapen=(), prefix="bert")
    check_names(tmp_path, wanted, missing=(), surplus=["cls.bias"], misshapen=(), prefix="bert")


@pytest.mark.parametrize("kept", [1, 2])
def test_shards_without_an_index_are_named(checkpoint: Path, kept: int) -> None:
    """Transformers reads none of them: which weight is where is not known, nor whether all are there."""
    weights = load_file(checkpoint / WEIGHTS)
    (checkpoint / WEIGHTS).unlink()
    for number, names in enumerate((sorted(weights)[::2], sorted(weights)[1::2])[:kept], 1):
        save_file({name: weights[name] for name in names}, checkpoint / f"model-0000{number}-of-00002.safetensors")
    with pytest.raises(CheckpointError, match=r"model-00001-of-00002.safetensors, .*index.json"):
        LLM(str(checkpoint))


@pytest.mark.parametrize(
    ("removed", "words"),
    [
        ("processor_config.json", r"processor cannot .*\(preprocessor_config.json, processor_config.json\)"),
        ("tokenizer.json", r"tokenizer cannot .*\(tokenizer.json, "),
    ],
)
def test_files_that_are_not_there_are_named(checkpoint: Path, removed: str, words: str) -> None:
    """Not by the library's advice about hubs and directories of the same name."""
    (checkpoint / removed).unlink()
    with pytest.raises(CheckpointError, match=words) as caught:
        LLM(str(checkpoint))
    assert "http" not in str(caught.value)


@pytest.mark.parametrize("name", ["image_token_id", "video_token_id"])
def test_a_token_that_the_tokenizer_lacks_is_named(tmp_path: Path, name: str) -> None:
    """The id, and the two files that do not fit together."""
    make_qwen_vl(tmp_path)
    edit(tmp_path / "config.json", **{name: 99999})
    with pytest.raises(CheckpointError, match=rf"config.json: {name} is 99999, .*tokenizer.json"):
        LLM(str(tmp_path))


def test_pickled_weights_are_not_loaded(checkpoint: Path) -> None:
    """A checkpoint with pickles only is refused with the reason."""
    (checkpoint / WEIGHTS).unlink()
    with pytest.raises(CheckpointError, match=r"no .*safetensors: "):
        LLM(str(checkpoint))
    (checkpoint / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"pickles, .*safetensors"):
        LLM(str(checkpoint))


@pytest.mark.parametrize(
    "program", ["import corellm; corellm.LLM({!r})", "import corellm.cli as c; c.main(['run', {!r}, 'a'])"]
)
def test_refusals_do_not_wait_for_torch(checkpoint: Path, program: str) -> None:
    """A broken checkpoint is refused before torch and transformers are imported: they take seconds."""
    (checkpoint / WEIGHTS).write_bytes(POINTER)
    code = (
        f"import atexit, sys\natexit.register(lambda: print(*sorted(sys.modules)))\n{program.format(str(checkpoint))}"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "Git LFS pointer" in done.stderr
    assert {"torch", "transformers"}.isdisjoint(done.stdout.split())


@pytest.mark.skipif(find_spec("torchvision") is not None, reason="torchvision is installed")
@pytest.mark.parametrize("processor", ["Pixtral", "Qwen2VL"])
def test_a_processor_that_asks_for_torchvision(checkpoint: Path, processor: str) -> None:
    """The error says how an adapter does without; it names no import where none works."""
    file = checkpoint / "processor_config.json"
    images, videos = f"{processor}ImageProcessor", f"{processor}VideoProcessor"
    edit(
        file,
        processor_class=f"{processor}Processor",
        image_processor={"image_processor_type": images},
        video_processor={"video_processor_type": videos},
    )
    with pytest.raises(CheckpointError, match="processor cannot be made") as caught:
        LLM(str(checkpoint))
    told = str(caught.value)
    assert "register_processor" in told
    assert " import " not in told


@pytest.mark.skipif(find_spec("torchvision") is not None, reason="torchvision is installed")
@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("transformers.models.idefics3.image_processing_pil_idefics3", "Idefics3ImageProcessorPil"),
        ("transformers.models.hunyuan_vl.image_processing_pil_hunyuan_vl", "HunYuanVLImageProcessorPil"),
    ],
)
def test_a_class_that_transformers_hides(monkeypatch: pytest.MonkeyPatch, module: str, name: str) -> None:
    """As its older releases hide it: the way out is an import, which works."""
    monkeypatch.setattr(f"transformers.{name}", type(name, (), {"is_dummy": True, "__module__": module}))
    told = way_out(ImportError(f"{name} requires the Torchvision library but it was not found"))
    assert told is not None
    assert told.endswith(f": from {module} import {name}")
    exec(f"from {module} import {name}")


# --- what the operator takes from elsewhere -------------------------------------------------------------------------


def tokens(llm: LLM, prompt: Any = "USER: hello there ASSISTANT:") -> list[int]:
    """Return a greedy output."""
    return list(llm.generate(prompt, GREEDY, use_tqdm=False)[0].outputs[0].token_ids)


def test_the_tokenizer_may_be_elsewhere(checkpoint: Path, tiny_llava: Path, tmp_path: Path) -> None:
    """`tokenizer=` names a directory: prompts and the processor are as with the checkpoint's own."""
    elsewhere = tmp_path / "tokenizer"
    elsewhere.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.move(checkpoint / name, elsewhere / name)
    shutil.copy(elsewhere / "tokenizer_config.json", checkpoint)
    with pytest.raises(CheckpointError, match="tokenizer cannot"):
        LLM(str(checkpoint))
    shutil.copy(elsewhere / "tokenizer.json", checkpoint)
    edit(elsewhere / "tokenizer_config.json", model_max_length=77)
    with LLM(str(checkpoint), tokenizer=elsewhere) as llm, LLM(str(tiny_llava)) as plain:
        assert llm.get_tokenizer().model_max_length == 77
        assert llm.engine.context.hf_processor.tokenizer is llm.get_tokenizer()
        assert tokens(llm) == tokens(plain)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("./nowhere", "no tokenizer './nowhere': no such directory"),
        ("nowhere", r"hub name \(owner/name\)"),
        ("some/tokenizer", "'some/tokenizer'"),
    ],
)
def test_no_such_tokenizer(checkpoint: Path, name: str, message: str) -> None:
    """The error says what was tried."""
    with pytest.raises(CheckpointError, match=message):
        LLM(str(checkpoint), tokenizer=name)


def test_overrides_change_the_configuration_of_model_and_engine(checkpoint: Path, tiny_llava: Path) -> None:
    """As a dictionary laid over it part by part, and as a function: both as if `config.json` said so."""
    edit(
        checkpoint / "config.json",
        vision_feature_layer=-1,
        text_config={
            **json.loads((checkpoint / "config.json").read_text())["text_config"],
            "max_position_embeddings": 256,
            "rms_norm_eps": 0.5,
        },
    )
    image = {"prompt": "USER: <image> ASSISTANT:", "multi_modal_data": {"image": random_image(60, 50, 1)}}
    with LLM(str(checkpoint), dtype="float32") as llm:
        want = tokens(llm, image)

    def change(config: Any) -> Any:
        config.vision_feature_layer = -1
        config.text_config.max_position_embeddings = 256
        config.text_config.rms_norm_eps = 0.5
        return config

    parts = {"vision_feature_layer": -1, "text_config": {"max_position_embeddings": 256, "rms_norm_eps": 0.5}}
    with LLM(str(tiny_llava), dtype="float32") as plain:
        assert tokens(plain, image) != want
    for overrides in (parts, change):
        with LLM(str(tiny_llava), dtype="float32", hf_overrides=overrides) as llm:
            assert tokens(llm, image) == want
            assert llm.engine.max_model_len == 256
            assert llm.engine.context.hf_config.text_config.hidden_size == 64  # the rest of the part stays


def test_overrides_may_name_the_architecture(checkpoint: Path) -> None:
    """The plugin is chosen by it; a function comes too late for that, and says so."""
    edit(checkpoint / "config.json", architectures=["UnknownLlava"])
    with pytest.raises(PluginNotFoundError, match="UnknownLlava"):
        LLM(str(checkpoint))
    named = {"architectures": ["LlavaForConditionalGeneration"]}
    with LLM(str(checkpoint), hf_overrides=named) as llm:
        assert tokens(llm)

    def rename(config: Any) -> Any:
        config.architectures = ["Other"]
        return config

    with pytest.raises(ConfigError, match="give a dict"):
        LLM("demo", hf_overrides=rename)


def test_without_an_architecture(checkpoint: Path) -> None:
    """The plugin is chosen by the type of model; without that, too, no plugin can be."""
    edit(checkpoint / "config.json", architectures=None)
    assert checkpoints.read_architectures(checkpoint) == ("llava",)
    with pytest.raises(PluginNotFoundError, match="serves llava;"):
        LLM(str(checkpoint))
    edit(checkpoint / "config.json", model_type=None)
    with pytest.raises(CheckpointError, match="names no architecture"):
        LLM(str(checkpoint))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"vision_feature_layr": 1}, "LlavaConfig has no 'vision_feature_layr'; did you mean 'vision_feature_layer'"),
        ({"max_position_embeddings": 9}, "LlavaConfig has no 'max_position_embeddings'; it is in 'text_config'"),
        ({"text_config": {"nonsense": 1}}, "LlamaConfig has no 'nonsense'"),
        ({"vision_feature_select_strategy": "odd"}, "LlavaConfig .*odd"),
        ({"architectures": "Llava"}, "architectures .*'Llava'"),
        (lambda config: None, "got NoneType"),
        (lambda config: config.nothing, "attribute 'nothing'"),
    ],
)
def test_wrong_overrides(tiny_llava: Path, overrides: Any, message: str) -> None:
    """The key and the nearest, the value, or what was returned instead."""
    with pytest.raises(ConfigError, match=message):
        LLM(str(tiny_llava), hf_overrides=overrides)


def test_dummy_weights_need_no_files_and_repeat(checkpoint: Path, tiny_llava: Path) -> None:
    """`load_format="dummy"`: no weights are read; prompts with images have the same output at every start."""
    (checkpoint / WEIGHTS).write_bytes(POINTER)
    image = {"prompt": "USER: <image> ASSISTANT:", "multi_modal_data": {"image": random_image(60, 50, 1)}}
    outputs, random_state = [], torch.random.get_rng_state()
    for _ in range(2):
        with LLM(str(checkpoint), load_format="dummy") as llm:
            outputs.append(tokens(llm, image))
            assert llm.engine.max_model_len == 1024
    assert outputs[0] == outputs[1]
    assert torch.equal(torch.random.get_rng_state(), random_state)
    with LLM(str(tiny_llava), load_format="safetensors") as llm:
        assert tokens(llm, image) != outputs[0]


def test_dummy_models_of_the_hub_come_without_weights(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing is downloaded that is not read."""
    import huggingface_hub

    asked: list[list[str]] = []
    (tmp_path / "config.json").touch()
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda name, **more: asked.append(more["allow_patterns"]) or tmp_path
    )
    for load_format in ("auto", "dummy"):
        checkpoints.resolve_checkpoint(ModelConfig(model="some/model", load_format=load_format))
    assert ["*.safetensors" in patterns for patterns in asked] == [True, False]


def test_without_a_seed_every_start_samples_anew(tiny_llava: Path) -> None:
    """`seed=None`: two starts differ; with the default they do not."""
    wild = SamplingParams(temperature=2, max_tokens=24, ignore_eos=True)

    def output(**arguments: Any) -> list[int]:
        with LLM(str(tiny_llava), **arguments) as llm:
            return list(llm.generate("a", wild, use_tqdm=False)[0].outputs[0].token_ids)

    assert output() == output(seed=0)
    assert output(seed=None) != output(seed=None)
