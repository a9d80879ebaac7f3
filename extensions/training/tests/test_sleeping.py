"""Models that sleep and get other weights: results are those without sleep, and those of a fresh load of the weights.

The oracle of an update is a load of a checkpoint that has these weights from the start: outputs, log-probabilities and
every tensor of every module are equal, bit for bit.
"""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from corellm import LLM, SamplingParams
from corellm.errors import CheckpointError, InvalidParameterError, RequestError
from corellm.loading.weight_places import WeightPlace, weight_places
from corellm_kernels.cpu import library
from corellm_kernels.cpu.router_weights import RouterWeight
from corellm_testing.tiny_text import make_tiny_checkpoint as make_tiny_text
from corellm_training import model_weights
from corellm_training.set_aside import SetAside, discard
from tests.fixtures import random_image

PARAMS = [
    SamplingParams(temperature=0, max_tokens=8, logprobs=2, ignore_eos=True),
    SamplingParams(temperature=0.9, seed=3, max_tokens=12, logprobs=2, ignore_eos=True),
]
TEXT = "USER: tell me about the weather of this week ASSISTANT:"
Q_PROJ = "language_model.model.layers.0.self_attn.q_proj.weight"
Result = list[tuple[list[int], Any]]


def with_image(seed: int) -> dict[str, Any]:
    return {"prompt": "USER: <image> what? ASSISTANT:", "multi_modal_data": {"image": random_image(40, 30, seed)}}


class Run(NamedTuple):
    """Requests of an engine, stepped by hand."""

    llm: LLM
    names: list[str]
    found: dict[str, Any]

    def step(self) -> None:
        self.found.update((output.request_id, output) for output in self.llm.engine.step())

    def end(self) -> Result:
        while self.llm.engine.has_unfinished_requests():
            self.step()
        outputs = [self.found[name].outputs[0] for name in self.names]
        return [(list(output.token_ids), output.logprobs) for output in outputs]


def begin(llm: LLM, prompts: list[Any] | None = None, wanted: list[SamplingParams] = PARAMS) -> Run:
    """Requests that have not run yet: a text and an image, greedy and sampled, by default."""
    asked = [TEXT, with_image(1)] if prompts is None else prompts
    names = [str(number) for number in range(len(asked))]
    for name, prompt, params in zip(names, asked, wanted, strict=False):
        llm.engine.add_request(name, prompt, params)
    return Run(llm, names, {})


def tensors_of(llm: LLM) -> dict[str, Tensor]:
    """Copies of all tensors of a model, which another may replace."""
    places = weight_places(llm.engine.runner.model)
    return {name: place.tensor.clone() for name, place in places.items() if not place.tensor.is_mkldnn}


def assert_equal(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    assert found.keys() == wanted.keys()
    assert [name for name in wanted if not torch.equal(found[name], wanted[name])] == []


def stored(path: Path) -> dict[str, Tensor]:
    """A checkpoint's weights."""
    return {name: tensor for file in sorted(path.glob("*.safetensors")) for name, tensor in load_file(file).items()}


@pytest.fixture(scope="module")
def first(make_llava: Callable[..., Path]) -> Path:
    return make_llava()


@pytest.fixture(scope="module")
def second(make_llava: Callable[..., Path]) -> Path:
    return make_llava(seed=1)


@pytest.fixture(scope="module")
def llm(first: Path) -> Iterator[LLM]:
    with LLM(first, dtype="float32", block_size=8) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def want(llm: LLM) -> Result:
    """The results of a model that has not slept."""
    return begin(llm).end()


# --- sleep ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [1, 2])
def test_requests_in_flight_wait_and_lose_nothing(llm: LLM, want: Result, level: int) -> None:
    """Asleep nothing runs; then each goes on from the token that it has, to the same end."""
    for num_steps in (0, 1, 5):
        run = begin(llm)
        for _ in range(num_steps):
            run.step()
        llm.sleep(level)
        assert llm.is_sleeping()
        assert not llm.engine.has_unfinished_requests()
        assert llm.engine.step() == []
        llm.wake_up()
        assert not llm.is_sleeping()
        assert run.end() == want
        llm.engine.scheduler.blocks.check_integrity()


def test_memory_is_given_back(llm: LLM, want: Result) -> None:
    """Asleep, the cache's and at level 2 the weights' values are gone; awake, weights are as before, and in place."""
    begin(llm).end()
    cache = next(iter(llm.engine.runner.kv_cache.layers.values())).key
    before = tensors_of(llm)
    places = weight_places(llm.engine.runner.model)
    addresses = {name: place.tensor.data_ptr() for name, place in places.items()}
    assert cache.any()
    llm.sleep(1)
    assert not cache.any()
    assert_equal(tensors_of(llm), before)
    llm.sleep(2)
    lost = [name for name, tensor in tensors_of(llm).items() if not torch.equal(tensor, before[name])]
    assert any("qkv_proj" in name for name in lost)
    llm.wake_up()
    assert_equal(tensors_of(llm), before)
    assert {name: place.tensor.data_ptr() for name, place in places.items()} == addresses
    assert begin(llm).end() == want


def test_caches_of_what_weights_made_are_dropped(llm: LLM) -> None:
    """Prefixes and encoder outputs are made anew; items stay processed."""
    llm.generate(with_image(5), PARAMS[0], use_tqdm=False)
    hits = llm.engine.input_processor.mm_processor.cache.hits
    encoded = llm.engine.scheduler.get_stats().encoder_cache_hits
    llm.sleep()
    llm.wake_up()
    (output,) = llm.generate(with_image(5), PARAMS[0], use_tqdm=False)
    assert output.num_cached_tokens == 0
    assert llm.engine.input_processor.mm_processor.cache.hits == hits + 1
    assert llm.engine.scheduler.get_stats().encoder_cache_hits == encoded


def test_parts_wake_by_their_tags(llm: LLM, want: Result) -> None:
    """Requests run once both are awake; waking what is awake does nothing, nor does sleeping twice."""
    run = begin(llm)
    for _ in range(2):
        llm.sleep(2)
    llm.wake_up(["weights"])
    assert llm.is_sleeping()
    assert llm.engine.step() == []
    for _ in range(2):
        llm.wake_up(tags=(tag for tag in ["kv_cache"]))
        assert not llm.is_sleeping()
    assert run.end() == want
    llm.wake_up()
    assert not llm.is_sleeping()


def test_an_interrupt_before_memory_is_given_back(llm: LLM, want: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    """No request runs any more: it sleeps, and can be woken."""

    def interrupted() -> None:
        raise KeyboardInterrupt

    run = begin(llm)
    run.step()
    with monkeypatch.context() as patched:
        patched.setattr(llm.engine, "capture", lambda: None)
        patched.setattr(llm.engine.runner, "drop_graphs", interrupted)
        with pytest.raises(KeyboardInterrupt):
            llm.sleep()
    assert llm.is_sleeping()
    llm.wake_up()
    assert not llm.is_sleeping()
    assert run.end() == want


def test_calls_are_refused_while_it_sleeps(llm: LLM, want: Result) -> None:
    """They would wait for a `wake_up` that only their own thread can make; the engine takes them after."""
    llm.sleep()
    with pytest.raises(RequestError, match="wake_up"):
        llm.generate(TEXT, PARAMS[0], use_tqdm=False)
    with pytest.raises(RequestError, match="wake_up"):
        llm.apply_model(len)
    run = begin(llm)
    assert not llm.engine.has_unfinished_requests()
    llm.wake_up()
    assert run.end() == want


def test_requests_end_while_it_sleeps(llm: LLM, want: Result) -> None:
    """One is aborted and another refused: their outputs come without a step of the model."""
    run = begin(llm)
    run.step()
    llm.sleep()
    llm.engine.abort_request("1")
    assert llm.engine.has_unfinished_requests()
    (output,) = llm.engine.step()
    assert (output.request_id, output.outputs[0].finish_reason) == ("1", "abort")
    assert not llm.engine.has_unfinished_requests()
    llm.wake_up()
    run.names.remove("1")
    assert run.end() == want[:1]


def test_the_metric_says_whether_it_sleeps(llm: LLM) -> None:
    def asleep() -> float:
        return next(metric.value for metric in llm.get_metrics() if metric.name == "corellm:is_sleeping")

    assert asleep() == 0
    llm.sleep()
    assert asleep() == 1
    llm.wake_up()
    assert asleep() == 0


@pytest.mark.parametrize("level", [0, 3, True, "1", None])
def test_other_levels_are_refused(llm: LLM, level: Any) -> None:
    with pytest.raises(InvalidParameterError, match="level must be 1"):
        llm.sleep(level)
    assert not llm.is_sleeping()


@pytest.mark.parametrize("tags", [["weights", "cache"], "cache", [["weights"]], 5])
def test_other_tags_are_refused(llm: LLM, tags: Any) -> None:
    llm.sleep()
    with pytest.raises(InvalidParameterError, match="tags must be of weights, kv_cache; got"):
        llm.wake_up(tags)
    assert llm.is_sleeping()
    llm.wake_up()


def test_swapped_requests_go_on(first: Path) -> None:
    """What the host kept of a request is given up, too: it is computed again."""
    small = {"dtype": "float32", "block_size": 8, "num_kv_blocks": 6, "max_model_len": 48, "max_num_batched_tokens": 32}
    long = SamplingParams(temperature=0, max_tokens=32, ignore_eos=True)
    with LLM(first, preemption_mode="swap", swap_space=0.01, **small) as llm:
        prompts = [[30, 41, 52] * 3, [33, 44, 55] * 3]
        wanted = begin(llm, prompts, [long] * 2).end()
        assert llm.engine.scheduler.get_stats().num_preemptions
        run = begin(llm, prompts, [long] * 2)
        while not llm.engine.scheduler.get_stats().num_swapped:
            run.step()
        llm.sleep()
        llm.wake_up()
        assert run.end() == wanted


def test_memory_of_a_device_comes_back() -> None:
    """As on a GPU, storages lose their memory; values come from the host, or are zeros; views share one storage."""

    def on_device(tensor: Tensor) -> Any:
        return SimpleNamespace(
            is_mkldnn=False, device=torch.device("meta"), untyped_storage=tensor.untyped_storage, nbytes=tensor.nbytes
        )

    for keep in (True, False):
        whole = torch.arange(12.0)
        view, empty = whole[3:5], torch.empty(0)
        aside = SetAside(map(on_device, (view, whole, empty)), keep=keep)
        assert whole.untyped_storage().nbytes() == 0
        aside.restore()
        aside.restore()
        assert whole.tolist() == (list(range(12)) if keep else [0] * 12)


def test_memory_of_a_transposed_weight_is_given_back() -> None:
    """As GPT-2's weights are; other numbers between those of a tensor stay."""
    whole = torch.ones(512, 2 * 512)
    discard([whole[:, ::2].t()])
    assert whole.all()
    discard([whole.t()])
    assert whole.count_nonzero() < whole.numel() / 8


def test_what_is_made_of_a_weight_follows_its_values_though_pages_come_back_from_its_file(tmp_path: Path) -> None:
    """A router's, which begins at a page: dropped, its memory has the values of the file, whatever it had before."""
    if library.unavailable() is not None:
        pytest.skip("no kernels that it could be packed for")
    file, own, other = tmp_path / "weight", torch.randn(32, 64), torch.randn(32, 64)
    file.write_bytes(own.numpy().tobytes())
    mapped = torch.from_file(str(file), shared=False, size=own.numel()).view(own.shape)
    router, x = torch.nn.Module(), torch.randn(3, 64)
    router.register_parameter("weight", RouterWeight(mapped))
    place = WeightPlace(router, "weight")
    for values in (own, other, own):
        discard([place.tensor])
        model_weights._move(values, place)
        torch.testing.assert_close(torch.nn.functional.linear(x, place.tensor), x @ values.T)


# --- other weights --------------------------------------------------------------------------------------------------

KINDS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "packed and fused": ("corellm_llava.tiny", {}, {}),
    "int8": ("corellm_llava.tiny", {}, {"quantization": "int8"}),
    "int4": ("corellm_llava.tiny", {}, {"quantization": "int4"}),
    "bfloat16": ("corellm_llava.tiny", {}, {"dtype": "bfloat16"}),
    "neither packed nor fused": ("corellm_llava.tiny", {}, {"fuse_layers": False}),
    "8 bits without kernels": ("corellm_llava.tiny", {}, {"fuse_layers": False, "quantization": "int8"}),
    "tied embeddings": (
        "corellm_testing.tiny_text",
        {"architecture": "Qwen2ForCausalLM", "num_key_value_heads": 2, "tie_word_embeddings": True},
        {},
    ),
    "frequencies that are fixed at load": (
        "corellm_testing.tiny_text",
        {"rope_parameters": {"rope_type": "dynamic", "factor": 8.0, "rope_theta": 1e4}, "max_position_embeddings": 64},
        {},
    ),
    "tied embeddings, int8": ("corellm_gemma3.tiny", {}, {"quantization": "int8"}),
    "a plugin's own model": ("corellm_deepseek_vl2.tiny", {}, {}),
    "renamed and split by a plugin": ("corellm_qwen_vl.original.tiny", {}, {}),
    "the generic adapter": ("corellm_transformers.tiny", {"architecture": "Idefics3ForConditionalGeneration"}, {}),
    "an encoder-decoder": ("corellm_florence2.tiny", {}, {"dtype": "bfloat16"}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_updates_equal_a_fresh_load(kind: str, tmp_path: Path) -> None:
    """All weights of another checkpoint, for every kind of layer, from tensors and from its directory."""
    module, options, engine = KINDS[kind]
    make = importlib.import_module(module).make_tiny_checkpoint
    paths = [make(tmp_path / str(seed), seed=seed, **options) for seed in (0, 1)]
    prompts = [[30, 41, 52, 33, 44, 55, 36, 47]]
    with LLM(paths[1], max_model_len=128, **engine) as fresh:
        wanted, tensors = begin(fresh, prompts).end(), tensors_of(fresh)
    with LLM(paths[0], max_model_len=128, **engine) as llm:
        before, own = begin(llm, prompts).end(), tensors_of(llm)
        assert before != wanted
        llm.update_weights(stored(paths[1]))
        assert begin(llm, prompts).end() == wanted
        assert_equal(tensors_of(llm), tensors)
        llm.sleep(2)
        llm.wake_up()
        assert_equal(tensors_of(llm), tensors)
        llm.update_weights(paths[0])
        assert_equal(tensors_of(llm), own)


@pytest.fixture
def updated(first: Path) -> Iterator[LLM]:
    """A model that a test may change."""
    with LLM(first, dtype="float32", block_size=8) as loaded:
        yield loaded


def test_some_weights_leave_the_others(updated: LLM, first: Path, second: Path, tmp_path: Path) -> None:
    """One projection of a fused layer, then an encoder's and a projector's; as pairs of a generator, twice."""
    mixed = shutil.copytree(first, tmp_path / "mixed")
    parts = ("vision_tower", "multi_modal_projector")
    new = {name: x for name, x in stored(second).items() if name == Q_PROJ or any(part in name for part in parts)}
    save_file({**stored(first), **new}, mixed / "model.safetensors", metadata={"format": "pt"})
    with LLM(mixed, dtype="float32", block_size=8) as fresh:
        wanted, tensors = begin(fresh).end(), tensors_of(fresh)
    for given in ({Q_PROJ: torch.zeros_like(new[Q_PROJ])}, {Q_PROJ: new.pop(Q_PROJ)}, new):
        updated.update_weights((name, tensor) for name, tensor in given.items())
    assert begin(updated).end() == wanted
    assert_equal(tensors_of(updated), tensors)


def test_a_request_goes_on_with_new_weights(updated: LLM, second: Path) -> None:
    """It keeps its tokens; those that follow are what the new weights say after them."""
    run = begin(updated, [TEXT])
    for _ in range(4):
        run.step()
    count = len(run.found["0"].outputs[0].token_ids)
    updated.update_weights(second)
    ((tokens, _),) = run.end()
    assert 0 < count < len(tokens) == 8
    with LLM(second, dtype="float32", block_size=8) as fresh:
        prompt = [*fresh.get_tokenizer()(TEXT)["input_ids"], *tokens[:count]]
        ((wanted, _),) = begin(fresh, [prompt]).end()
    assert tokens[count:] == wanted[: 8 - count]


def test_updates_while_it_sleeps_are_one_load(
    updated: LLM, second: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Tensor by tensor, as trainers send them; with the weights awake and the cache asleep, at once."""
    loads: list[Any] = []
    load = model_weights._loaded
    monkeypatch.setattr(model_weights, "_loaded", lambda *given: (loads.append(given), load(*given))[1])
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    new = stored(second)
    updated.sleep(2)
    for name, tensor in [*[*new.items()][:3], *new.items()]:
        updated.update_weights({name: tensor})
    assert not loads
    assert len([*tmp_path.rglob("*.safetensors")]) == len(new)  # those of the first round are deleted
    updated.wake_up(["weights"])
    assert len(loads) == 1
    updated.update_weights(new)
    assert (len(loads), updated.is_sleeping()) == (2, True)
    updated.wake_up(["kv_cache"])
    found = begin(updated).end()
    with LLM(second, dtype="float32", block_size=8) as fresh:
        assert begin(fresh).end() == found
    updated.close()
    assert not [*tmp_path.iterdir()]


WRONG: dict[str, tuple[Callable[[dict[str, Tensor], Path], Any], str]] = {
    "a name": (lambda w, _: {**w, Q_PROJ.replace("q_proj", "q_porj"): w[Q_PROJ]}, "has no .*q_porj.*q_proj"),
    "a shape": (lambda w, _: {**w, Q_PROJ: w[Q_PROJ][:-1]}, r"q_proj.weight has the shape \[63, 64\]"),
    "a type": (lambda w, _: {**w, Q_PROJ: w[Q_PROJ].to(torch.int8)}, "q_proj.weight is of type I8"),
    "twice": (lambda w, _: [*w.items(), (Q_PROJ, w[Q_PROJ])], "twice"),
    "no tensor": (lambda w, _: {**w, Q_PROJ: [1.0]}, "pairs of a name and a dense tensor"),
    "no name": (lambda w, _: [*w.values()], "pairs of a name and a dense tensor"),
    "a sparse tensor": (lambda w, _: {Q_PROJ: w[Q_PROJ].to_sparse()}, "pairs of a name and a dense tensor"),
    "no values": (lambda w, _: {Q_PROJ: w[Q_PROJ].to("meta")}, "pairs of a name and a dense tensor"),
    "nothing": (lambda w, _: {}, "there are none"),
    "a number": (lambda w, _: 7, "got a int"),
    "no directory": (lambda w, folder: folder / "none", "no directory"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_wrong_weights_change_nothing(llm: LLM, want: Result, second: Path, tmp_path: Path, fault: str) -> None:
    """However many are right: the error names the first that is not, and a running request goes on."""
    make, message = WRONG[fault]
    run = begin(llm)
    run.step()
    with pytest.raises(InvalidParameterError, match=message):
        llm.update_weights(make(stored(second), tmp_path))
    assert run.end() == want


def test_a_weight_that_is_tied_is_told(tmp_path: Path) -> None:
    """A trainer's `state_dict` has it, and the checkpoint has not."""
    config: dict[str, Any] = {"architecture": "Qwen2ForCausalLM", "num_key_value_heads": 2, "tie_word_embeddings": True}
    refused = pytest.raises(InvalidParameterError, match=r"no 'lm_head.weight', which is tied to .*; leave it out")
    with LLM(make_tiny_text(tmp_path, **config), dtype="float32", num_kv_blocks=8) as llm, refused:
        llm.update_weights({"lm_head.weight": torch.zeros(4, 64)})


@pytest.mark.parametrize("content", [None, b"no safetensors"])
def test_broken_files_change_nothing(llm: LLM, want: Result, tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match="safetensors"):
        llm.update_weights(tmp_path)
    assert begin(llm).end() == want


def test_an_update_whose_files_are_gone(first: Path, second: Path, tmp_path: Path) -> None:
    """One that leaves some of its weights as they are is refused before anything is dropped; a whole one is not."""
    gone = tmp_path / "gone"
    gone.mkdir()
    save_file(stored(second), gone / "model.safetensors", metadata={"format": "pt"})
    with LLM(first, dtype="float32", block_size=8) as llm:
        llm.update_weights(gone)
        wanted = begin(llm).end()
        shutil.rmtree(gone)
        with pytest.raises(CheckpointError, match="is gone"):
            llm.update_weights({Q_PROJ: torch.zeros_like(stored(second)[Q_PROJ])})
        assert not llm.is_sleeping()
        assert begin(llm).end() == wanted
        llm.update_weights(stored(first))
        assert begin(llm).end() != wanted


def test_a_load_that_fails_brings_the_old_weights_back(
    llm: LLM, want: Result, second: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights that pass all checks, and that the model's own code refuses; asleep, the next update makes it good."""
    load = model_weights._loaded

    def fail(config: Any, located: Any, max_model_len: int) -> Any:
        if any(path.is_symlink() for path in located.path.iterdir()):
            raise CheckpointError("these weights are refused")
        return load(config, located, max_model_len)

    monkeypatch.setattr(model_weights, "_loaded", fail)
    run = begin(llm)
    run.step()
    with pytest.raises(CheckpointError, match="refused"):
        llm.update_weights(stored(second))
    assert not llm.is_sleeping()
    assert run.end() == want


def test_layers_that_cannot_be_made_alike_are_refused(
    llm: LLM, want: Result, first: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fused layers of which one stays plain with the new weights have no place to go to."""
    replace = model_weights.replace_layers
    calls: list[Any] = []

    def replace_once(*given: Any) -> None:
        calls.append(given)
        if len(calls) > 1:
            replace(*given)

    monkeypatch.setattr(model_weights, "replace_layers", replace_once)
    with pytest.raises(CheckpointError, match="load the model anew"):
        llm.update_weights(first)
    assert len(calls) == 2
    assert begin(llm).end() == want


def test_dummy_weights_are_replaced_whole(first: Path) -> None:
    """A trainer's weights are the first; some alone would leave the others random."""
    with LLM(first, dtype="float32", block_size=8) as fresh:
        wanted = begin(fresh).end()
    with LLM(first, dtype="float32", block_size=8, load_format="dummy") as llm:
        before = begin(llm).end()
        with pytest.raises(CheckpointError, match="lacks weights"):
            llm.update_weights({Q_PROJ: stored(first)[Q_PROJ]})
        assert begin(llm).end() == before != wanted
        llm.update_weights(stored(first))
        assert begin(llm).end() == wanted
