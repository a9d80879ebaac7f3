"""Requests with adapters give the tokens that PEFT generates, in any batch, and the same bits alone and with others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import transformers

from corellm import LLM, LoRARequest, SamplingParams
from corellm.cli import main
from corellm.errors import InvalidParameterError, RequestFailedError
from corellm_kernels.cpu import library
from corellm_lora.adapter_files import AdapterFiles
from corellm_lora.adapters import Adapters
from corellm_testing.reference import Continuation
from corellm_testing.tiny_text import make_tiny_checkpoint
from corellm_testing.together import generate_together
from extensions.lora.tests.adapters import Adapted, asking
from tests.fixtures import random_image
from tests.text_models.parity import PROMPTS

LENGTH = 14
CONFIGS: dict[str, dict[str, Any]] = {
    "attention": {"r": 4, "target_modules": ["q_proj", "v_proj"]},
    "all": {"r": 16, "target_modules": "all-linear", "lora_alpha": 16},
    "patterns": {
        "r": 6, "target_modules": ["gate_proj", "up_proj", "down_proj", "o_proj"], "use_rslora": True,
        "rank_pattern": {"layers.0.mlp.down_proj": 9}, "alpha_pattern": {"o_proj": 40}, "layers_to_transform": [0, 1],
    },
    "one": {"r": 1, "target_modules": ["model.layers.1.self_attn.k_proj"], "lora_alpha": 8},
}  # fmt: skip
REQUESTS: list[tuple[str, str | None]] = [
    *((PROMPTS[2], name) for name in (None, *CONFIGS)),
    (PROMPTS[1], "all"), (PROMPTS[3], "patterns"), (PROMPTS[1], None), (PROMPTS[3], "attention"), (PROMPTS[0], "one"),
]  # fmt: skip
NAMES = [name for _, name in REQUESTS]
ENGINES: dict[str, dict[str, Any]] = {
    "whole": {},
    "one at a time": {"max_loras": 1},
    "chunks": {"max_num_batched_tokens": 16, "max_loras": 2, "max_cpu_loras": 3},
    "swapped": {"max_num_batched_tokens": 64, "block_size": 8, "num_kv_blocks": 15, "preemption_mode": "swap"},
    "recomputed": {"max_num_batched_tokens": 64, "block_size": 8, "num_kv_blocks": 15},
    "eager, unfused": {"enforce_eager": True, "fuse_layers": False},
}
"""15 blocks of 8 tokens hold the longest request, but not all together."""


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Adapted:
    """A tiny Llama and its adapters."""
    folder = tmp_path_factory.mktemp("llama")
    path = make_tiny_checkpoint(folder / "model", intermediate_size=96, num_key_value_heads=2)
    return Adapted.made(folder, path, transformers.LlamaForCausalLM, CONFIGS)


@pytest.fixture(scope="module")
def wanted(llama: Adapted) -> list[Continuation]:
    """What PEFT generates for the requests."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(llama.path)
    return llama.wanted([(tokenizer(prompt, return_tensors="pt"), name) for prompt, name in REQUESTS], LENGTH)


@pytest.fixture(params=["compiled", "off"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The kernels for CPUs: those that there are, or none."""
    if request.param == "off":
        monkeypatch.setenv("CORELLM_CPU_KERNELS", "off")
        forget_library()
    elif library.unavailable() is not None:
        pytest.skip(str(library.unavailable()))
    yield request.param
    monkeypatch.undo()
    forget_library()


def forget_library() -> None:
    library._library.cache_clear()
    library.unavailable.cache_clear()


def engine(adapted: Adapted, **options: Any) -> LLM:
    given = {"dtype": "float32", "max_model_len": 120, "max_loras": 4, "enable_lora": True, **options}
    return LLM(str(adapted.path), **given)


def generate(llm: LLM, prompts: list[Any], adapters: Any) -> list[Any]:
    """Outputs of requests that run together."""
    params = SamplingParams(temperature=0, max_tokens=LENGTH, ignore_eos=True, logprobs=0)
    chosen = adapters if isinstance(adapters, list) else [adapters] * len(prompts)
    return generate_together(llm, asking(prompts, chosen), [params] * len(prompts))


def numbers_of(output: Any) -> tuple[list[int], list[float]]:
    """An output's tokens, and their log-probabilities to the last bit."""
    (completion,) = output.outputs
    return list(completion.token_ids), [
        step[token].logprob for step, token in zip(completion.logprobs, completion.token_ids, strict=True)
    ]


def require_equal(outputs: list[Any], wanted: list[Continuation]) -> None:
    for output, want in zip(outputs, wanted, strict=True):
        tokens, logprobs = numbers_of(output)
        assert output.prompt_token_ids == want.prompt_token_ids
        assert tokens == want.token_ids
        assert logprobs == pytest.approx(want.logprobs, abs=1e-4)


def part_of(llm: LLM) -> Adapters:
    """The part that has the adapters."""
    return next(part for part in llm.engine.runner.parts if isinstance(part, Adapters))


def test_adapters_choose_tokens(wanted: list[Continuation]) -> None:
    """One prompt without and with each adapter: dropped or mixed up, they would be seen below."""
    assert len({tuple(one.token_ids) for one in wanted[: 1 + len(CONFIGS)]}) == 1 + len(CONFIGS)


@pytest.mark.parametrize("name", ENGINES)
def test_tokens_equal_pefts(llama: Adapted, wanted: list[Continuation], kernels: str, name: str) -> None:
    """Adapters of ranks 1 to 16 and none in one batch: chunked, cached, preempted, waiting, captured, fused or not."""
    options = ENGINES[name]
    with engine(llama, **options) as llm:
        assert (llm.engine.runner.graphs is not None) == (kernels == "compiled" and "enforce_eager" not in options)
        outputs: list[Any] = []
        for _ in range(2):
            found = generate(llm, [prompt for prompt, _ in REQUESTS], llama.requests(NAMES))
            require_equal(found, wanted)
            outputs += found
        assert any(output.num_cached_tokens for output in outputs)
        assert any(output.metrics.num_preemptions for output in outputs) == ("num_kv_blocks" in options)
        llm.engine.scheduler.blocks.check_integrity()


@pytest.mark.parametrize(
    "options", [{}, {"dtype": "bfloat16"}, {"quantization": "int8"}, {"quantization": "int4"}], ids=str
)
def test_results_are_the_requests_own(llama: Adapted, options: dict[str, Any]) -> None:
    """Alone and among requests with other adapters, bit for bit; each adapter makes a difference.

    And those without one, in a model that was loaded without.
    """
    if library.unavailable() is not None:
        pytest.skip("torch's products depend on the number of rows")
    with engine(llama, enable_prefix_caching=False, **options) as llm:
        prompts = [prompt for prompt, _ in REQUESTS]
        together = [numbers_of(output) for output in generate(llm, prompts, llama.requests(NAMES))]
        alone = [numbers_of(generate(llm, [prompt], llama.request(name))[0]) for prompt, name in REQUESTS]
        assert together == alone
    assert len({str(numbers) for numbers in together[: 1 + len(CONFIGS)]}) == 1 + len(CONFIGS)
    without = [number for number, name in enumerate(NAMES) if name is None]
    with LLM(str(llama.path), **{"dtype": "float32", "max_model_len": 120, **options}) as llm:
        plain = generate(llm, [prompts[number] for number in without], None)
    assert [numbers_of(output) for output in plain] == [together[number] for number in without]


def test_adapters_go_on_with_other_weights(llama: Adapted, tmp_path: Path) -> None:
    """As with a load of these weights; after a sleep without any they are as before. A recorded plan stays right."""
    other = make_tiny_checkpoint(tmp_path, seed=1, intermediate_size=96, num_key_value_heads=2)
    prompts = [prompt for prompt, _ in REQUESTS]

    def numbers(llm: LLM) -> list[Any]:
        llm.reset_prefix_cache()
        return [numbers_of(generate(llm, [prompt], llama.request(name))[0]) for prompt, name in REQUESTS[:5]]

    with engine(replace(llama, path=other)) as fresh:
        wanted = numbers(fresh)
    with engine(llama) as llm:
        before = numbers(llm)
        llm.sleep(2)
        llm.wake_up()
        assert numbers(llm) == before != wanted
        llm.update_weights(other)
        assert numbers(llm) == wanted
        assert len(generate(llm, prompts, llama.requests(NAMES))) == len(prompts)


def test_beams_have_adapters(llama: Adapted, wanted: list[Continuation]) -> None:
    """A search that follows one output finds what PEFT generates, with each prompt's own adapter."""
    pytest.importorskip("corellm_decoding")
    with engine(llama) as llm:
        search: Any = llm.beam_search
        params = {"beam_width": 1, "max_tokens": LENGTH, "ignore_eos": True}
        found = search([prompt for prompt, _ in REQUESTS], params, lora_request=llama.requests(NAMES))
        assert [list(output.outputs[0].token_ids) for output in found] == [want.token_ids for want in wanted]
        with pytest.raises(InvalidParameterError, match="2 entries for 1 prompts"):
            search(["a"], params, lora_request=llama.requests(NAMES[:2]))


def test_cached_blocks_are_those_of_one_adapter(llama: Adapted, wanted: list[Continuation], tmp_path: Path) -> None:
    """The same prompt finds nothing of another adapter's; a copy of its files elsewhere is the same adapter."""
    with engine(llama) as llm:
        for (prompt, name), want in zip(REQUESTS[:4], wanted, strict=False):
            for is_cached in (False, True):
                (output,) = generate(llm, [prompt], llama.request(name))
                assert (output.num_cached_tokens > 0) == is_cached
                assert numbers_of(output)[0] == want.token_ids
        copy = tmp_path / "copy"
        copy.mkdir()
        for file in Path(llama.adapters["all"].lora_path).iterdir():
            (copy / file.name).write_bytes(file.read_bytes())
        request = LoRARequest("another name", 7, str(copy))
        assert generate(llm, [REQUESTS[0][0]], request)[0].num_cached_tokens
        for file in Path(llama.adapters["one"].lora_path).iterdir():  # other files under the same name
            (copy / file.name).write_bytes(file.read_bytes())
        (output,) = generate(llm, [PROMPTS[3]], request)
        assert output.num_cached_tokens == 0
        assert numbers_of(output) == numbers_of(generate(llm, [PROMPTS[3]], llama.request("one"))[0])


def test_many_adapters_take_turns(llama: Adapted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more run at once than may, all requests end, and no more are kept than may."""
    adapters = []
    for number in range(12):
        folder = tmp_path / str(number)
        folder.mkdir()
        own = Path(llama.adapters[list(CONFIGS)[number % 4]].lora_path)
        for file in own.iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
        config = folder / "adapter_config.json"
        config.write_text(config.read_text() + " " * number)  # another adapter by its bytes
        adapters.append(LoRARequest(str(number), number + 1, str(folder)))
    at_once: list[int] = []
    begin = Adapters.begin

    def noting(part: Adapters, batch: Any) -> Any:
        failed = begin(part, batch)
        at_once.append(len(set(part._users.values())))
        return failed

    monkeypatch.setattr(Adapters, "begin", noting)
    chosen = [adapters[number % 12] for number in range(36)]
    with engine(llama, max_loras=3, max_cpu_loras=5) as llm:
        outputs = generate(llm, [PROMPTS[0]] * 36, chosen)
        part = part_of(llm)
        assert len(part._shelf) == 5
        assert max(at_once) == 3
    for number, output in enumerate(outputs):
        assert numbers_of(output)[0] == numbers_of(outputs[number % 4])[0]


@pytest.mark.parametrize("content", ["another's", "cut off"])
def test_weights_that_change_while_they_are_read(
    llama: Adapted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    """A training that saves again, just after the file was checked: the request fails, and those beside it do not."""
    written = {"another's": llama.adapters["attention"], "cut off": llama.adapters["all"]}[content]
    for file in Path(llama.adapters["all"].lora_path).iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights, values = tmp_path / "adapter_model.safetensors", AdapterFiles.values
    changed = (Path(written.lora_path) / weights.name).read_bytes()

    def late(files: AdapterFiles) -> Any:
        weights.write_bytes(changed[: 5000 if content == "cut off" else None])
        return values(files)

    monkeypatch.setattr(AdapterFiles, "values", late)
    adapters = [LoRARequest("again", 1, str(tmp_path)), None]
    with engine(llama) as llm:
        changing, plain = llm.generate(["yes"] * 2, use_tqdm=False, on_error="return", lora_request=adapters)
    assert isinstance(changing.error, RequestFailedError)
    assert "'again' cannot be read any more: adapter_model.safetensors changed" in str(changing.error)
    assert plain.error is None


def test_an_adapter_that_is_not_there_any_more(llama: Adapted, wanted: list[Continuation], tmp_path: Path) -> None:
    """Its request fails alone, in a step with others; so does one whose files have changed since it was prepared."""
    for name in ("lost", "changed"):
        (tmp_path / name).mkdir()
        for file in Path(llama.adapters["all"].lora_path).iterdir():
            (tmp_path / name / file.name).write_bytes(file.read_bytes() + b" " * len(name) * ("config" in file.name))
    params = SamplingParams(temperature=0, max_tokens=LENGTH, ignore_eos=True)
    with engine(llama) as llm:
        inputs = llm.engine.input_processor
        prepared = [
            inputs.process({"prompt": "yes", "lora_request": LoRARequest(name, 1, str(tmp_path / name))})
            for name in ("lost", "changed")
        ]
        (tmp_path / "lost" / "adapter_model.safetensors").unlink()
        with (tmp_path / "changed" / "adapter_config.json").open("a") as file:
            file.write(" ")
        prompts = [*prepared, *({"prompt": p, "lora_request": llama.request(n)} for p, n in REQUESTS[:3])]
        outputs = llm.generate(prompts, params, use_tqdm=False, on_error="return")
    assert [type(output.error) for output in outputs[:2]] == [RequestFailedError] * 2
    assert "'lost' cannot be read any more" in str(outputs[0].error)
    assert "'changed' has changed" in str(outputs[1].error)
    assert [output.outputs[0].token_ids for output in outputs[2:]] == [want.token_ids for want in wanted[:3]]


def test_a_packed_layer(tmp_path: Path) -> None:
    """Phi-3, whose own layers join query, key and value, and gate and up."""
    path = make_tiny_checkpoint(
        tmp_path / "model", architecture="Phi3ForCausalLM", intermediate_size=96, num_key_value_heads=2
    )
    configs = {"joined": {"target_modules": ["qkv_proj", "gate_up_proj"]}, "others": {"target_modules": ["o_proj"]}}
    phi = Adapted.made(tmp_path, path, transformers.Phi3ForCausalLM, configs)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    requests = [(PROMPTS[1], name) for name in (None, *configs)]
    wanted = phi.wanted([(tokenizer(prompt, return_tensors="pt"), name) for prompt, name in requests], LENGTH)
    assert len({tuple(one.token_ids) for one in wanted}) == 3
    with engine(phi) as llm:
        require_equal(generate(llm, [PROMPTS[1]] * 3, phi.requests(name for _, name in requests)), wanted)


def test_a_model_that_sees(tiny_llava: Path, tmp_path: Path) -> None:
    """LLaVA's decoder with adapters, by its module's names of today and those of earlier releases of transformers."""
    from safetensors.torch import load_file, save_file

    configs = {
        "attention": {"target_modules": r".*language_model.*\.(q|k|v|o)_proj"},
        "mlp": {"target_modules": r".*language_model.*\.(gate|up|down)_proj", "r": 3},
    }
    llava = Adapted.made(tmp_path, tiny_llava, transformers.LlavaForConditionalGeneration, configs)
    processor = transformers.AutoProcessor.from_pretrained(tiny_llava)
    image, text = random_image(40, 30, 1), "USER: <image>\nWhat is this? ASSISTANT:"
    inputs = processor(images=[image], text=text, return_tensors="pt")
    names = [None, *configs]
    wanted = llava.wanted([(inputs, name) for name in names], LENGTH)
    assert len({tuple(one.token_ids) for one in wanted}) == 3
    file = Path(llava.adapters["mlp"].lora_path) / "adapter_model.safetensors"
    tensors = load_file(file)
    assert all(key.startswith("base_model.model.model.language_model.layers") for key in tensors)
    save_file({key.replace("model.language_model.", "language_model.model."): t for key, t in tensors.items()}, file)
    with engine(llava, max_model_len=200) as llm:
        prompt = {"prompt": text, "multi_modal_data": {"image": image}}
        require_equal(generate(llm, [prompt] * 3, llava.requests(names)), wanted)
        messages = [{"role": "user", "content": [{"type": "image", "image": image}, {"type": "text", "text": "And?"}]}]
        params = SamplingParams(temperature=0, max_tokens=LENGTH, ignore_eos=True)
        chats = llm.chat([messages] * 3, params, use_tqdm=False, lora_request=llava.requests(names))
        assert len({tuple(output.outputs[0].token_ids) for output in chats}) == 3


def test_the_terminal_has_an_adapter(llama: Adapted, capsys: pytest.CaptureFixture[str]) -> None:
    """`corellm run --lora`: it answers."""
    words = ["run", str(llama.path), "--dtype", "float32", "--max-model-len", "120", "--max-tokens", "8"]
    texts = {}
    for name in (None, "all"):
        lora = [] if name is None else ["--lora", llama.adapters[name].lora_path]
        assert main([*words, "--raw", *lora, PROMPTS[2]]) == 0
        raw = capsys.readouterr().out
        with engine(llama, max_loras=1) as llm:
            params = SamplingParams(temperature=0, max_tokens=8)
            (output,) = llm.generate([PROMPTS[2]], params, use_tqdm=False, lora_request=llama.request(name))
        assert raw.strip() == output.outputs[0].text.strip()
        texts[name] = raw
    assert texts[None] != texts["all"]
