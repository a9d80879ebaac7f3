"""The offline API end to end on a tiny LLaVA: what callers get, and that one request's fault stays its own."""

from __future__ import annotations

import functools
import gc
import itertools
import re
import shutil
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Timer
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from tqdm.auto import tqdm

from corellm import LLM, RequestOutput, RequestOutputKind, SamplingParams
from corellm.errors import (
    ConfigError,
    CorellmError,
    EmbeddingCountError,
    EmbeddingInputError,
    EncoderError,
    EngineDeadError,
    InvalidParameterError,
    ItemLimitError,
    ItemNotCachedError,
    MediaError,
    MissingPlaceholderError,
    ProcessorKwargsError,
    PromptError,
    PromptTooLongError,
    RequestError,
    RequestFailedError,
    SurplusPlaceholderError,
    UnsupportedModalityError,
)
from corellm.worker.encoder_graphs import EncoderGraphs
from corellm_testing.together import generate_together
from tests.fixtures import random_image

GREEDY = SamplingParams(temperature=0, max_tokens=8)
IMAGE_PROMPT = "USER: <image>\nWhat shape? ASSISTANT:"


def ask(image: Any = None, **more: Any) -> dict[str, Any]:
    """A prompt with one image."""
    return {
        "prompt": IMAGE_PROMPT,
        "multi_modal_data": {"image": random_image(60, 50, 1) if image is None else image},
        **more,
    }


@pytest.fixture(scope="module")
def llm(tiny_llava: Path) -> Iterator[LLM]:
    with LLM(str(tiny_llava), dtype="float32", max_num_seqs=8, max_num_batched_tokens=64, block_size=8) as loaded:
        yield loaded


@pytest.fixture(autouse=True)
def _nothing_leaks(llm: LLM) -> Iterator[None]:
    """After every test all blocks are free, no encoder output is referenced, and the engine still works."""
    yield
    scheduler = llm.engine.scheduler
    scheduler.blocks.check_integrity()
    assert scheduler.blocks.num_free_blocks == scheduler.blocks.capacity
    scheduler.encoder_cache.check_integrity()
    assert not llm.engine.has_unfinished_requests()
    assert tokens(llm, "USER: hello ASSISTANT:")


def tokens(llm: LLM, prompt: Any, params: SamplingParams = GREEDY) -> list[int]:
    return llm.generate(prompt, params, use_tqdm=False)[0].outputs[0].token_ids


# --- forms of prompts -------------------------------------------------------------------------------------------------


def test_text_tokens_and_images_in_every_form_are_the_same(llm: LLM, tmp_path: Path) -> None:
    """A prompt as text or as token ids; an image as object, path, bytes, array, tensor, bare or in a list."""
    image = random_image(60, 50, 1)
    file = tmp_path / "image.png"
    image.save(file)
    array = torch.from_numpy(np.array(image))
    want = tokens(llm, ask(image))
    for given in (file, str(file), file.read_bytes(), array.numpy(), array, array.permute(2, 0, 1), [image]):
        assert tokens(llm, ask(given)) == want
    ids = llm.get_tokenizer()(IMAGE_PROMPT)["input_ids"]
    assert tokens(llm, {"prompt_token_ids": ids, "multi_modal_data": {"image": image}}) == want


def test_one_or_many(llm: LLM) -> None:
    """A bare prompt, a list, one parameter set for all or one each, in order."""
    prompts = ["USER: a ASSISTANT:", "USER: b c ASSISTANT:", ask()]
    together = llm.generate(prompts, GREEDY, use_tqdm=False)
    assert [o.outputs[0].token_ids for o in together] == [tokens(llm, p) for p in prompts]
    lengths = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (1, 5, 3)]
    each = llm.generate(prompts, lengths, use_tqdm=False)
    assert [len(o.outputs[0].token_ids) for o in each] == [1, 5, 3]
    with pytest.raises(InvalidParameterError, match=r"2 sampling_params .* 3 prompts"):
        llm.generate(prompts, lengths[:2], use_tqdm=False)


def test_precomputed_embeddings_equal_the_image(llm: LLM, tiny_llava: Path) -> None:
    """The encoder's output of transformers, given as `image_embeds` or as a tensor, has the same effect."""
    image = random_image(60, 50, 1)
    model = transformers.LlavaForConditionalGeneration.from_pretrained(tiny_llava, dtype=torch.float32).eval()
    processor = transformers.AutoProcessor.from_pretrained(tiny_llava)
    with torch.inference_mode():
        pixels = processor.image_processor(image, return_tensors="pt")["pixel_values"]
        embeds = torch.stack(list(model.get_image_features(pixels).pooler_output))
    want = tokens(llm, ask(image))
    for data in ({"image": embeds}, {"image": [embeds[0]]}, {"image_embeds": embeds}):
        assert tokens(llm, {"prompt": IMAGE_PROMPT, "multi_modal_data": data}) == want


@pytest.mark.filterwarnings("ignore:divide by zero:RuntimeWarning", "ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("value", [float("nan"), 1e300])
def test_values_that_break_arithmetic_stay_with_their_request(llm: LLM, value: float) -> None:
    """Embeddings that are not finite, as given or in the model's dtype, fail their request and poison no block."""
    want = tokens(llm, "USER: hello there ASSISTANT:")
    embeds = torch.full((1, 16, 64), value, dtype=torch.float64)
    with pytest.raises((EmbeddingInputError, EncoderError, RequestFailedError)):
        llm.generate({"prompt": IMAGE_PROMPT, "multi_modal_data": {"image": embeds}}, GREEDY, use_tqdm=False)
    with pytest.raises(EncoderError, match="NaN or infinity"):
        llm.generate(ask(mm_processor_kwargs={"image_std": [0.0, 0.0, 0.0]}), GREEDY, use_tqdm=False)
    llm.engine.scheduler.blocks.reset_prefix_cache()
    crowd = ["USER: hello there ASSISTANT:"] * 8
    assert all(o.outputs[0].token_ids == want for o in llm.generate(crowd, GREEDY, use_tqdm=False))


def test_callers_may_reuse_their_tensors(llm: LLM) -> None:
    """What a caller does to embeddings after handing them over changes nothing that was cached."""
    mine = torch.randn(1, 16, 64, generator=torch.Generator().manual_seed(1))
    kept = mine.clone()

    def output_of(embeds: torch.Tensor) -> list[int]:
        llm.engine.scheduler.blocks.reset_prefix_cache()
        return tokens(llm, {"prompt": IMAGE_PROMPT, "multi_modal_data": {"image_embeds": embeds}})

    want = output_of(mine)
    mine.mul_(-3)
    assert output_of(kept) == want != output_of(mine)


def test_an_interrupt_in_the_encoder_is_forgotten(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while an image is encoded: the next request with it succeeds."""
    prompt = ask(random_image(33, 44, 77))
    right, calls = llm.engine.runner.encoders._embed, []

    def interrupted(features: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return right(features)

    monkeypatch.setattr(llm.engine.runner.encoders, "_embed", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tokens(llm, prompt)
    assert len(tokens(llm, prompt)) > 0


def test_one_uuid_for_different_embeddings(llm: LLM) -> None:
    """Two embeddings of other lengths under one name: the second is refused, batched with an innocent one."""
    want = tokens(llm, "USER: hello ASSISTANT:")
    for num_embeds, fails in ((5, False), (7, True)):
        prompt = {
            "prompt": IMAGE_PROMPT,
            "multi_modal_data": {"image_embeds": [torch.ones(num_embeds, 64)]},
            "multi_modal_uuids": {"image": "u"},
        }
        outputs = llm.generate(["USER: hello ASSISTANT:", prompt], GREEDY, use_tqdm=False, on_error="return")
        assert outputs[0].outputs[0].token_ids == want
        assert isinstance(outputs[1].error, EmbeddingCountError) == fails


def test_uuids_name_items(llm: LLM) -> None:
    """A uuid stands for the content: the same uuid finds the first image in the cache."""
    first, other = random_image(60, 50, 1), random_image(60, 50, 2)
    named = {"multi_modal_uuids": {"image": "my-image"}}
    assert tokens(llm, ask(other)) != tokens(llm, ask(first))
    assert tokens(llm, ask(first, **named)) == tokens(llm, ask(other, **named)) == tokens(llm, ask(first))


def test_a_uuid_stands_in_for_an_image_sent_before(llm: LLM) -> None:
    """Its output is the image's, with only the uuid sent; the same uuid with another salt is another image."""
    first, other = random_image(60, 50, 21), random_image(60, 50, 22)
    named = {"multi_modal_uuids": {"image": "scan"}, "cache_salt": "first"}
    want, others = tokens(llm, ask(first)), tokens(llm, ask(other))
    assert want != others
    assert tokens(llm, ask(first, **named)) == tokens(llm, ask([None], **named)) == want
    with pytest.raises(ItemNotCachedError, match=r"image 0: .* 'scan'"):
        tokens(llm, ask([None], **named | {"cache_salt": "second"}))
    (output,) = llm.generate(ask(other, **named | {"cache_salt": "second"}), GREEDY, use_tqdm=False)
    assert (output.outputs[0].token_ids, output.num_cached_tokens) == (others, 0)
    assert tokens(llm, ask([None], **named)) == want


def test_priorities_where_requests_are_scheduled_by_them(tiny_llava: Path) -> None:
    """The output is the same; without the policy a priority is refused (see the table below)."""
    with LLM(str(tiny_llava), dtype="float32", scheduling_policy="priority") as urgent:
        prompt = "USER: hello ASSISTANT:"
        assert tokens(urgent, {"prompt": prompt, "priority": -3}) == tokens(urgent, prompt)


def test_arguments_for_images_alone_are_arguments(llm: LLM) -> None:
    """In the group or outside it: the same item, and not the same as without."""
    process = llm.engine.input_processor.process

    def identifier(**kwargs: Any) -> str:
        return process(ask(mm_processor_kwargs=kwargs)).features[0].identifier

    assert identifier() != identifier(do_normalize=False) == identifier(images_kwargs={"do_normalize": False})


# --- what can be wrong ------------------------------------------------------------------------------------------------


def wrong_prompts() -> list[tuple[Any, type[CorellmError], str]]:
    image = random_image(20, 20, 0)
    return [
        ("", PromptError, "prompt is empty"),
        ({"prompt_token_ids": []}, PromptError, "prompt is empty"),
        (
            {"prompt_token_ids": [5, 10**6]},
            PromptError,
            "token 1000000, ",
        ),
        ({"prompt_token_ids": "abc"}, PromptError, "list of integers"),
        ({"promt": "x"}, PromptError, "unknown prompt key 'promt'; did you mean 'prompt'"),
        (5, PromptError, "prompt is text"),
        ({"prompt": "x", "multi_modal_data": [image]}, PromptError, "multi_modal_data must"),
        ("what is <image> this?", SurplusPlaceholderError, "image"),
        ({"prompt": "no place", "multi_modal_data": {"image": image}}, MissingPlaceholderError, "image"),
        (ask([image, image]), MissingPlaceholderError, "2 image"),
        ({"prompt": "<image><image>", "multi_modal_data": {"image": image}}, SurplusPlaceholderError, "image"),
        (ask(b"this is text, not an image"), MediaError, "image 0.*not a"),
        (ask("no/such/file.png"), MediaError, "no such file"),
        ({"prompt": IMAGE_PROMPT, "multi_modal_data": {"video": image}}, UnsupportedModalityError, "video"),
        (ask(mm_processor_kwargs={"sise": 3}), ProcessorKwargsError, "does not take 'sise'; did you mean '.*size'"),
        ("word " * 2000, PromptTooLongError, "1024"),
        ("broken \udcff text", PromptError, "not valid Unicode"),
        ({"prompt": "x", "cache_salt": "\ud800"}, PromptError, "cache_salt"),
        ({"prompt_token_ids": [10**5000]}, PromptError, "absurdly large"),
        (
            ask(mm_processor_kwargs={"images_kwargs": {"sise": 3}}),
            ProcessorKwargsError,
            "images_kwargs: 'sise' is no arg",
        ),
        (ask(mm_processor_kwargs={"videos_kwargs": {"fps": 3}}), ProcessorKwargsError, "no video"),
        (ask(multi_modal_uuids={"video": "v"}), InvalidParameterError, "'video'.* names nothing: .*has image"),
        ({"prompt": "x", "priority": "high"}, PromptError, "priority"),
        ({"prompt": "x", "priority": 1}, InvalidParameterError, "priority 1 .*'fcfs'.*scheduling_policy=.priority."),
        (ask(multi_modal_uuids={"image": 5}), InvalidParameterError, "must hold strings"),
    ]


@pytest.mark.parametrize(("prompt", "error", "message"), wrong_prompts())
def test_wrong_prompts_have_typed_errors(llm: LLM, prompt: Any, error: type[CorellmError], message: str) -> None:
    """Each names the thing and the way out, and disturbs no other request."""
    with pytest.raises(error, match=message):
        llm.generate(prompt, GREEDY, use_tqdm=False)


def test_a_wrong_prompt_leaves_the_others_alone(llm: LLM) -> None:
    """The others' outputs are those they give alone; the error carries all outputs."""
    prompts: list[Any] = ["USER: a ASSISTANT:", "what is <image> this?", ask(), ask(b"junk"), "USER: b ASSISTANT:"]
    want = [tokens(llm, prompts[i]) for i in (0, 2, 4)]
    outputs = llm.generate(prompts, GREEDY, use_tqdm=False, on_error="return")
    assert [outputs[i].outputs[0].token_ids for i in (0, 2, 4)] == want
    assert isinstance(outputs[1].error, SurplusPlaceholderError)
    assert isinstance(outputs[3].error, MediaError)
    assert outputs[3].outputs[0].finish_reason == "error"
    with pytest.raises(SurplusPlaceholderError) as caught:
        llm.generate(prompts, GREEDY, use_tqdm=False)
    assert [caught.value.outputs[i].outputs[0].token_ids for i in (0, 2, 4)] == want  # type: ignore[attr-defined]
    assert "prompt 1 of 5" in caught.value.__notes__[0]


def test_parameters_beyond_the_vocabulary(llm: LLM) -> None:
    """Token ids in parameters are checked against the model."""
    for field in ({"logit_bias": {10**6: 1}}, {"allowed_token_ids": [10**6]}, {"stop_token_ids": [10**6]}):
        with pytest.raises(InvalidParameterError, match="1000000"):
            llm.generate("hello", SamplingParams(**field), use_tqdm=False)


def test_item_limits(tiny_llava: Path) -> None:
    """The operator's limit is kept: 0, the limit, one more; a limit for what the model does not take is refused."""
    image = random_image(20, 20, 0)
    with LLM(str(tiny_llava), limit_mm_per_prompt={"image": 2}) as limited:
        for count in (0, 1, 2):
            prompt = {"prompt": "<image>" * count + "x", "multi_modal_data": {"image": [image] * count}}
            assert limited.generate(prompt, GREEDY, use_tqdm=False)[0].finished
        with pytest.raises(ItemLimitError, match=r"3 images .* at most 2"):
            limited.generate({"prompt": "x", "multi_modal_data": {"image": [b"not decoded"] * 3}}, use_tqdm=False)
    with LLM(str(tiny_llava), limit_mm_per_prompt={"image": 0}) as text_only:
        assert text_only.generate("hello", GREEDY, use_tqdm=False)[0].finished
        with pytest.raises(SurplusPlaceholderError):
            text_only.generate("what is <image>?", GREEDY, use_tqdm=False)
        with pytest.raises(ItemLimitError, match="at most 0"):
            text_only.generate(ask(), GREEDY, use_tqdm=False)
    with pytest.raises(UnsupportedModalityError, match="takes no 'audio'"):
        LLM(str(tiny_llava), limit_mm_per_prompt={"audio": 1})


def test_impossible_sizes_are_refused_at_start(tiny_llava: Path) -> None:
    """Both numbers are named."""
    with pytest.raises(ConfigError, match=r"max_model_len=5000 .* 1024 positions"):
        LLM(str(tiny_llava), max_model_len=5000)
    with pytest.raises(ConfigError, match=r"max_model_len=512 .* 160 tokens"):
        LLM(str(tiny_llava), max_model_len=512, num_kv_blocks=10)
    with pytest.raises(ConfigError, match=r"max_num_batched_tokens=64 .* max_model_len=1024"):
        LLM(str(tiny_llava), max_num_batched_tokens=64, enable_chunked_prefill=False)


# --- failures while running -------------------------------------------------------------------------------------------


@pytest.fixture
def failing_encoder(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`failing_encoder(wrong)`: the encoder misbehaves for the reddest image only (`wrong(outputs) -> outputs`)."""

    def install(wrong: Any) -> None:
        model = llm.engine.runner.model
        right = model.get_image_features

        def features(pixel_values: torch.Tensor, **kwargs: Any) -> Any:
            output = right(pixel_values, **kwargs)
            if (pixel_values[:, 0].amin((-1, -2)) > 1.5).any():  # normalized pure red
                output.pooler_output = wrong(list(output.pooler_output))
            return output

        monkeypatch.setattr(model, "get_image_features", features)
        monkeypatch.setattr(EncoderGraphs, "run", lambda *_: None)  # one replays the encoder that it captured

    return install


RED = Image.new("RGB", (30, 30), (255, 0, 0))


def test_encoder_failure_fails_one_request(llm: LLM, failing_encoder: Any) -> None:
    """The guilty image's request ends with the encoder's error, batched with others that are not disturbed."""
    others = [ask(random_image(40, 40, s)) for s in (1, 2, 3)]
    want = [tokens(llm, p) for p in others]

    def explode(outputs: Any) -> Any:
        raise RuntimeError("the encoder is unwell")

    failing_encoder(explode)
    llm.engine.scheduler.blocks.reset_prefix_cache()
    outputs = llm.generate([others[0], ask(RED), *others[1:]], GREEDY, use_tqdm=False, on_error="return")
    assert isinstance(outputs[1].error, EncoderError)
    assert "RuntimeError: the encoder is unwell" in str(outputs[1].error)
    assert [outputs[i].outputs[0].token_ids for i in (0, 2, 3)] == want


@pytest.mark.parametrize(
    "wrong",
    [
        lambda outputs: [o[:-1] for o in outputs],
        lambda outputs: [torch.cat([o, o[:1]]) for o in outputs],
        lambda outputs: [o[:1] for o in outputs],
        lambda outputs: [o[None] for o in outputs],
        lambda outputs: outputs[:-1],
    ],
    ids=[
        "an embedding short",
        "an embedding too many",
        "one embedding that would broadcast",
        "rank 3",
        "an item short",
    ],
)
def test_wrong_row_counts_are_found(llm: LLM, failing_encoder: Any, wrong: Any) -> None:
    """Never bound, never broadcast, never clipped."""
    failing_encoder(wrong)
    with pytest.raises(EmbeddingCountError, match="embeddings"):
        llm.generate(ask(RED), GREEDY, use_tqdm=False)


def test_a_failed_forward_pass_fails_only_the_guilty(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transient fault costs no request; a single request's fault costs that request, batched with others."""
    prompts = ["USER: good ASSISTANT:", "USER: bad ASSISTANT:", "USER: fine ASSISTANT:"]
    want = [tokens(llm, p) for p in prompts]
    llm.engine.scheduler.blocks.reset_prefix_cache()
    right, calls = llm.engine.runner._language_model.forward, []

    def failing_once(*args: Any, **kwargs: Any) -> Any:
        if len(kwargs["paged"].metadata.query_lens) > 1 and not calls:
            calls.append(1)
            raise RuntimeError("matrix on strike")
        return right(*args, **kwargs)

    monkeypatch.setattr(llm.engine.runner._language_model, "forward", failing_once)
    assert [o.outputs[0].token_ids for o in generate_together(llm, prompts, [GREEDY] * 3)] == want
    assert calls, "a step of several requests failed"

    def failing_for_one(*args: Any, **kwargs: Any) -> Any:
        metadata = getattr(kwargs["paged"], "metadata", None)
        if metadata is not None and any(n > 9 for n in metadata.query_lens):
            raise RuntimeError("too many at once")
        return right(*args, **kwargs)

    monkeypatch.setattr(llm.engine.runner._language_model, "forward", failing_for_one)
    llm.engine.scheduler.blocks.reset_prefix_cache()
    short, long = "USER: a", "USER: " + "a very long question " * 3
    for _ in range(4):  # more often than the engine bears with a broken model
        outputs = llm.generate([short, long, short], GREEDY, use_tqdm=False, on_error="return")
        assert isinstance(outputs[1].error, RequestFailedError)
        assert "at once" in str(outputs[1].error)
        assert outputs[0].outputs[0].token_ids == outputs[2].outputs[0].token_ids != []


def test_an_engine_that_keeps_failing_gives_up(tiny_llava: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three failed steps in a row are not a request's fault: every request fails."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("broken for good")

    with LLM(str(tiny_llava), max_num_seqs=1) as broken:
        monkeypatch.setattr(broken.engine.runner._language_model, "forward", forward)
        with pytest.raises(EngineDeadError, match=r"(?s)in a row.*RuntimeError: broken for good"):
            broken.generate(["a", "b", "c", "d"], GREEDY, use_tqdm=False)


def test_abort_at_any_step(llm: LLM) -> None:
    """An aborted request ends with what it has; the others' tokens do not change."""
    prompts = [ask(random_image(40, 40, s)) for s in range(4)]
    want = [tokens(llm, p) for p in prompts]
    engine = llm.engine
    for moment in range(8):
        for i, prompt in enumerate(prompts):
            engine.add_request(f"r{i}", prompt, GREEDY, stream=False)
        done, steps = {}, 0
        while engine.has_unfinished_requests():
            if steps == moment:
                assert engine.abort_request("r2")
                assert not engine.abort_request("r2")
            done |= {o.request_id: o for o in engine.step()}
            steps += 1
        assert done["r2"].outputs[0].finish_reason == "abort"
        assert done["r2"].outputs[0].token_ids == want[2][: len(done["r2"].outputs[0].token_ids)]
        assert [done[f"r{i}"].outputs[0].token_ids for i in (0, 1, 3)] == [want[i] for i in (0, 1, 3)]


def test_an_id_can_be_used_again_but_not_twice_at_once(llm: LLM) -> None:
    """The engine refuses a second request of the same name while the first runs."""
    llm.engine.add_request("same", "USER: a ASSISTANT:", GREEDY)
    with pytest.raises(InvalidParameterError, match="'same'"):
        llm.engine.add_request("same", "USER: a ASSISTANT:", GREEDY)
    while llm.engine.has_unfinished_requests():
        llm.engine.step()
    llm.engine.add_request("same", "USER: a ASSISTANT:", GREEDY)
    llm.engine.abort_request("same")
    assert llm.engine.step()[0].outputs[0].finish_reason == "abort"


# --- sampling ---------------------------------------------------------------------------------------------------------


def test_seeded_requests_repeat_in_any_company(llm: LLM) -> None:
    """Alone, among others, in another order: the same tokens; another seed gives others."""
    seeded = SamplingParams(temperature=1.5, seed=7, max_tokens=12, ignore_eos=True)
    unseeded = SamplingParams(temperature=1.5, max_tokens=12, ignore_eos=True)
    alone = tokens(llm, ask(), seeded)
    for position in (0, 2):
        crowd: list[Any] = ["USER: a ASSISTANT:", "USER: b ASSISTANT:"]
        crowd.insert(position, ask())
        params = [unseeded, unseeded]
        params.insert(position, seeded)
        assert llm.generate(crowd, params, use_tqdm=False)[position].outputs[0].token_ids == alone
    assert tokens(llm, ask(), SamplingParams(temperature=1.5, seed=8, max_tokens=12, ignore_eos=True)) != alone


def test_n_completions(llm: LLM) -> None:
    """`n` completions of one prompt, different, each as its own seed gives, in one output."""
    params = SamplingParams(n=3, temperature=1.5, seed=7, max_tokens=10, ignore_eos=True, logprobs=2)
    (output,) = llm.generate(ask(), params, use_tqdm=False)
    assert [c.index for c in output.outputs] == [0, 1, 2]
    assert len({tuple(c.token_ids) for c in output.outputs}) == 3
    for index, completion in enumerate(output.outputs):
        alone = SamplingParams(temperature=1.5, seed=7 + index, max_tokens=10, ignore_eos=True)
        assert tokens(llm, ask(), alone) == completion.token_ids
        assert completion.logprobs is not None
        assert len(completion.logprobs) == 10
        assert completion.cumulative_logprob == pytest.approx(
            sum(p[t].logprob for p, t in zip(completion.logprobs, completion.token_ids, strict=True))
        )


def test_prompt_logprobs_equal_a_plain_forward_pass(llm: LLM, tiny_llava: Path) -> None:
    """In chunks of 64 with images: each prompt token's log-probability is transformers' own."""
    text = f"{IMAGE_PROMPT} {'and then some more ' * 12} <image> end"
    images = [random_image(50, 40, s) for s in (1, 2)]
    prompt = {"prompt": text, "multi_modal_data": {"image": images}}
    params = SamplingParams(temperature=0, max_tokens=2, prompt_logprobs=3)
    llm.generate(prompt, GREEDY, use_tqdm=False)  # its prefix is cached now, and must not be used
    (output,) = llm.generate(prompt, params, use_tqdm=False)
    model = transformers.LlavaForConditionalGeneration.from_pretrained(tiny_llava, dtype=torch.float32).eval()
    processor = transformers.AutoProcessor.from_pretrained(tiny_llava)
    inputs = processor(text=text, images=images, return_tensors="pt")
    with torch.inference_mode():
        want = torch.log_softmax(model(**inputs).logits[0], -1)
    ids = inputs["input_ids"][0].tolist()
    assert output.prompt_token_ids == ids
    assert output.prompt_logprobs is not None
    assert output.prompt_logprobs[0] is None
    assert len(output.prompt_logprobs) == len(ids)
    for position in range(1, len(ids)):
        got = output.prompt_logprobs[position]
        assert got is not None
        assert got[ids[position]].logprob == pytest.approx(want[position - 1, ids[position]].item(), abs=1e-4)
        best = want[position - 1].argmax().item()
        assert got[best].rank == 1


def test_stop_strings_and_tokens(llm: LLM) -> None:
    """A stop string across token borders ends the text before it or with it; a stop token likewise, with its reason."""
    free = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, skip_special_tokens=False)
    (full,) = llm.generate(ask(), free, use_tqdm=False)
    text, ids = full.outputs[0].text, full.outputs[0].token_ids
    stop = text[len(text) // 3 : len(text) // 3 + 4]
    cut = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, skip_special_tokens=False, stop=[stop])
    completion = llm.generate(ask(), cut, use_tqdm=False)[0].outputs[0]
    assert completion.text == text[: text.index(stop)]
    assert (completion.finish_reason, completion.stop_reason) == ("stop", stop)
    keep = SamplingParams(
        temperature=0, max_tokens=24, ignore_eos=True, skip_special_tokens=False, stop=[stop],
        include_stop_str_in_output=True,
    )  # fmt: skip
    assert llm.generate(ask(), keep, use_tqdm=False)[0].outputs[0].text == text[: text.index(stop) + len(stop)]
    by_token = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, stop_token_ids=[ids[5]])
    completion = llm.generate(ask(), by_token, use_tqdm=False)[0].outputs[0]
    assert completion.token_ids == ids[: ids.index(ids[5]) + 1]
    assert (completion.finish_reason, completion.stop_reason) == ("stop", ids[5])


def test_a_special_token_as_a_stop_string(llm: LLM) -> None:
    """It ends the output although the text leaves it out; its text is kept where that is asked for."""
    eos = llm.get_tokenizer().eos_token_id
    told = llm.get_tokenizer().eos_token
    often = {"temperature": 0, "max_tokens": 8, "ignore_eos": True, "logit_bias": {eos: 100}, "stop": [told]}
    for keep, text in ((False, ""), (True, told)):
        params = SamplingParams(include_stop_str_in_output=keep, **often)
        completion = llm.generate(ask(), params, use_tqdm=False)[0].outputs[0]
        assert (completion.token_ids, completion.text) == ([eos], text)
        assert (completion.finish_reason, completion.stop_reason) == ("stop", told)
    late = llm.generate(ask(), SamplingParams(min_tokens=3, **often), use_tqdm=False)[0].outputs[0]
    assert len(late.token_ids) == 3


def test_the_texts_of_log_probabilities_are_the_text(llm: LLM) -> None:
    """Joined, those of the sampled tokens: also without special tokens in it, and with a character cut off."""
    for seed in range(6):
        params = SamplingParams(temperature=5.0, seed=seed, max_tokens=20, ignore_eos=True, logprobs=2)
        completion = llm.generate(ask(), params, use_tqdm=False)[0].outputs[0]
        assert completion.logprobs is not None
        special = set(llm.get_tokenizer().all_special_ids)
        texts = [
            position[token].decoded_token
            for position, token in zip(completion.logprobs, completion.token_ids, strict=True)
            if token not in special
        ]
        assert "".join(text or "" for text in texts) == completion.text


def test_prompt_logprobs_of_one_token(llm: LLM) -> None:
    """Nothing is said of the first token, which has nothing before it; without the parameter there is no list."""
    prompt = {"prompt_token_ids": [5]}
    (output,) = llm.generate(prompt, SamplingParams(max_tokens=1, prompt_logprobs=0), use_tqdm=False)
    assert output.prompt_logprobs == [None]
    assert llm.generate(prompt, SamplingParams(max_tokens=1), use_tqdm=False)[0].prompt_logprobs is None


def test_log_probabilities_of_the_whole_vocabulary(llm: LLM, tiny_llava: Path) -> None:
    """For -1 every token of the logits is there, for prompt and output, as transformers' logits give it."""
    params = SamplingParams(temperature=0, max_tokens=2, logprobs=-1, prompt_logprobs=-1)
    one = SamplingParams(temperature=0, max_tokens=2, logprobs=1)
    output, beside = llm.generate(["USER: what ASSISTANT:"] * 2, [params, one], use_tqdm=False)
    model = transformers.LlavaForConditionalGeneration.from_pretrained(tiny_llava, dtype=torch.float32).eval()
    ids = [*output.prompt_token_ids, *output.outputs[0].token_ids]
    with torch.inference_mode():
        want = torch.log_softmax(model(input_ids=torch.tensor([ids])).logits[0], -1)
    assert output.prompt_logprobs is not None
    assert output.outputs[0].logprobs is not None
    assert output.prompt_logprobs[0] is None
    for position, found in enumerate([*output.prompt_logprobs[1:], *output.outputs[0].logprobs]):
        assert found is not None
        got = torch.tensor([found[token].logprob for token in range(want.shape[1])])
        torch.testing.assert_close(got, want[position], atol=1e-4, rtol=0)
        assert sorted(entry.rank or 0 for entry in found.values())[0] == 1
    assert beside.outputs[0].logprobs is not None
    assert all(len(position) <= 2 for position in beside.outputs[0].logprobs)


def test_parameters_are_taken_when_they_are_given(llm: LLM) -> None:
    """What is assigned before counts, and is checked; what is assigned while the request is in flight does not."""
    params = SamplingParams(temperature=0, ignore_eos=True)
    params.max_tokens = 5
    llm.engine.add_request("mine", ask(), params)
    params.max_tokens = 2
    outputs = [o for _ in iter(llm.engine.has_unfinished_requests, False) for o in llm.engine.step()]
    assert len(outputs[-1].outputs[0].token_ids) == 5
    params.top_p = 7
    with pytest.raises(InvalidParameterError, match="top_p must be"):
        llm.generate(ask(), params, use_tqdm=False)


def test_no_seed_is_random(llm: LLM) -> None:
    """Requests with the seed -1, or none, differ from each other; a hot temperature is allowed, and random."""
    for seed in (-1, None):
        params = SamplingParams(temperature=50.0, seed=seed, max_tokens=12, ignore_eos=True)
        outputs = llm.generate([ask()] * 3, params, use_tqdm=False)
        assert len({tuple(output.outputs[0].token_ids) for output in outputs}) == 3


def test_outputs_of_every_kind(llm: LLM) -> None:
    """Deltas joined are what the other kinds end with, for every completion, and `generate` gives all in any kind."""
    last: dict[RequestOutputKind, RequestOutput] = {}
    for kind in RequestOutputKind:
        params = SamplingParams(
            n=2, seed=3, max_tokens=10, ignore_eos=True, logprobs=1, prompt_logprobs=0, output_kind=kind
        )
        llm.engine.add_request("kind", ask(), params)
        outputs = [o for _ in iter(llm.engine.has_unfinished_requests, False) for o in llm.engine.step()]
        assert (len(outputs) == 1) == (kind is RequestOutputKind.FINAL_ONLY)
        if kind is RequestOutputKind.DELTA:
            assert all(len(completion.token_ids) <= 1 for output in outputs for completion in output.outputs)
            joined = functools.reduce(RequestOutput.followed_by, outputs)
            assert [len(output.outputs[0].token_ids) for output in outputs][:2] == [1, 1]  # nothing was changed
            outputs = [*outputs[:-1], joined]
        last[kind] = outputs[-1]
        last[kind].metrics = None
        (whole,) = llm.generate(ask(), params, use_tqdm=False)
        assert whole.outputs == last[kind].outputs
    cumulative, delta, final = last.values()
    cumulative.num_cached_tokens = delta.num_cached_tokens = final.num_cached_tokens = 0
    assert cumulative == delta == final


def test_the_last_tokens_of_a_prompt(llm: LLM) -> None:
    """The output is that of the prompt's end alone; items before it are dropped, items in it stay, none is cut."""
    whole = llm.engine.input_processor.process(ask())
    (image,) = whole.features
    length, where = len(whole.token_ids), image.placeholder

    def kept(count: int, prompt: Any, **more: Any) -> RequestOutput:
        params = SamplingParams(temperature=0, max_tokens=6, truncate_prompt_tokens=count, **more)
        return llm.generate(prompt, params, use_tqdm=False)[0]

    after = kept(length - where.end, ask())
    assert after.prompt_token_ids == whole.token_ids[where.end :]
    assert after.multi_modal_placeholders == {}
    assert after.outputs[0].token_ids == tokens(
        llm, {"prompt_token_ids": whole.token_ids[where.end :]}, SamplingParams(temperature=0, max_tokens=6)
    )
    with_image = kept(length - where.offset, ask())
    assert with_image.multi_modal_placeholders == {"image": [replace(where, offset=0)]}
    other = {"image": random_image(50, 40, 9)}
    assert with_image.outputs[0].token_ids != kept(length - where.offset, ask() | {"multi_modal_data": other})
    assert kept(length + 5, ask()).prompt_token_ids == whole.token_ids
    for count in (length - where.end + 1, length - where.offset - 1):
        with pytest.raises(InvalidParameterError, match="image 0") as caught:
            kept(count, ask())
        assert caught.value.param == "truncate_prompt_tokens"
    long = {"prompt_token_ids": [5, 6, 7] * llm.engine.max_model_len}
    room = llm.engine.scheduler.limits.max_total_tokens
    fitting = kept(-1, long, ignore_eos=True)
    assert (len(fitting.prompt_token_ids), len(fitting.outputs[0].token_ids)) == (room - 6, 6)
    with pytest.raises(InvalidParameterError, match="lower max_tokens"):
        llm.generate(long, SamplingParams(truncate_prompt_tokens=-1, max_tokens=room), use_tqdm=False)


def test_outputs_say_where_the_items_are(llm: LLM) -> None:
    """By modality, in the prompt's order; nothing for a prompt without items."""
    two = {
        "prompt": f"{IMAGE_PROMPT} <image>",
        "multi_modal_data": {"image": [random_image(40, 30, s) for s in (1, 2)]},
    }
    output, text = llm.generate([two, "hello"], GREEDY, use_tqdm=False)
    token = llm.get_tokenizer().convert_tokens_to_ids("<image>")
    places = output.multi_modal_placeholders["image"]
    of_items = [i for place in places for i in range(place.offset, place.end)]
    assert len(places) == 2
    assert of_items == [i for i, t in enumerate(output.prompt_token_ids) if t == token]
    assert text.multi_modal_placeholders == {}


def test_streaming_equals_the_final_text(llm: LLM) -> None:
    """Outputs grow, never take back, and end with what a non-streaming request gives."""
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    want = llm.generate(ask(), params, use_tqdm=False)[0].outputs[0].text
    llm.engine.add_request("s", ask(), params)
    texts = [o.outputs[0].text for _ in iter(llm.engine.has_unfinished_requests, False) for o in llm.engine.step()]
    assert len(texts) >= 20
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(texts))
    assert texts[-1] == want


# --- conversations ----------------------------------------------------------------------------------------------------


def conversation(text: str, *images: Any) -> list[dict[str, Any]]:
    parts = [{"type": "image", "image": image} for image in images]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]


def test_chat_equals_the_rendered_prompt(llm: LLM, tiny_llava: Path) -> None:
    """The template is the checkpoint's, rendered and tokenized as transformers does it."""
    image = random_image(60, 50, 1)
    (output,) = llm.chat(conversation("What shape?", image), GREEDY, use_tqdm=False)
    processor = transformers.AutoProcessor.from_pretrained(tiny_llava)
    rendered = processor.apply_chat_template(
        [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What shape?"}]}],
        add_generation_prompt=True, tokenize=False,
    )  # fmt: skip
    want = processor(text=rendered, images=image, return_tensors="pt")["input_ids"][0].tolist()
    assert output.prompt_token_ids == want
    assert output.prompt == rendered


@pytest.mark.parametrize("role", ["user", "assistant"])
def test_special_tokens_people_type_stay_text(llm: LLM, role: str) -> None:
    """`<image>` or `</s>` typed in a message makes no placeholder and no end of sequence."""
    tokenizer = llm.get_tokenizer()
    messages = [
        {"role": role, "content": "I type <image> and </s><s> here"},
        *conversation("ok?", random_image(9, 9, 1)),
    ]
    (output,) = llm.chat(messages, GREEDY, use_tqdm=False)
    image, eos, bos = tokenizer.convert_tokens_to_ids(["<image>", "</s>", "<s>"])
    assert output.prompt_token_ids.count(image) == 16
    assert output.prompt_token_ids.count(eos) == 0
    assert output.prompt_token_ids.count(bos) == 1
    kept = tokenizer.decode([t for t in output.prompt_token_ids if t != image])
    assert "I type <image> and </s><s> here" in kept


@pytest.mark.parametrize("role", ["system", "developer"])
def test_operators_write_special_tokens(llm: LLM, role: str) -> None:
    """What the operator writes is tokenized as it stands, but for what would take an item's place."""
    tokenizer = llm.get_tokenizer()
    messages = [{"role": role, "content": "Now </s> and"}, *conversation("what?", random_image(9, 9, 1))]
    (output,) = llm.chat(messages, GREEDY, use_tqdm=False)
    assert output.prompt_token_ids.count(tokenizer.eos_token_id) == 1
    messages[0]["content"] = "Now <image> and"
    (output,) = llm.chat(messages, GREEDY, use_tqdm=False)
    assert output.prompt_token_ids.count(tokenizer.convert_tokens_to_ids("<image>")) == 16
    assert "Now <image> and" in tokenizer.decode(output.prompt_token_ids)


def test_special_tokens_a_caller_allows(llm: LLM) -> None:
    """Special tokens that are named stay tokens, or all of them; what stands for an item never does."""
    tokenizer = llm.get_tokenizer()
    messages = conversation("I type </s> and <image>", random_image(9, 9, 1))
    eos, image = tokenizer.convert_tokens_to_ids(["</s>", "<image>"])
    allowed: Any
    for allowed, count in (((), 0), (["</s>"], 1), ({"</s>"}, 1), ("all", 1), (["<s>"], 0)):
        (output,) = llm.chat(messages, GREEDY, use_tqdm=False, allowed_special=allowed)
        assert output.prompt_token_ids.count(eos) == count, allowed
        assert output.prompt_token_ids.count(image) == 16
    for allowed, words in (
        (["<image>"], "'<image>' stands"),
        (["<nothing>"], "'<nothing>'"),
        ("</s>", 'or "all"'),
        (None, 'or "all"'),
        ([1], 'or "all"'),
    ):
        with pytest.raises(InvalidParameterError, match=f"allowed_special.*{words}"):
            llm.chat(messages, GREEDY, use_tqdm=False, allowed_special=allowed)


def test_special_tokens_beside_messages(llm: LLM) -> None:
    """Tools and template arguments are the operator's text, documents are not; neither places an item."""
    tokenizer = llm.get_tokenizer()
    (output,) = llm.chat(
        [{"role": "user", "content": "?"}],
        GREEDY,
        use_tqdm=False,
        chat_template="{{ documents[0].text }} {{ note }} {{ tools[0].name }}",
        tools=[{"name": "b</s> <image>"}],
        chat_template_kwargs={"documents": [{"text": "a</s> <image>"}], "note": "</s> <image>"},
    )
    eos, image = tokenizer.convert_tokens_to_ids(["</s>", "<image>"])
    assert output.prompt == "a</s> <image> </s> <image> b</s> <image>"
    assert output.prompt_token_ids.count(eos) == 2
    assert output.prompt_token_ids.count(image) == 0


def test_added_tokens_that_are_not_special_stay_tokens(make_llava: Any, tmp_path: Path) -> None:
    """`<think>` in a message is the token that the tokenizer has for it."""
    path = shutil.copytree(make_llava(), tmp_path / "thinking")
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    tokenizer.add_tokens(["<think>"])
    spare = tokenizer.convert_tokens_to_ids("<think>")
    tokenizer.save_pretrained(path)
    model = transformers.LlavaForConditionalGeneration.from_pretrained(path)
    model.resize_token_embeddings(spare + 1)
    model.save_pretrained(path)
    with LLM(str(path), dtype="float32", block_size=8) as thinking:
        for role in ("system", "user", "assistant"):
            messages = [{"role": role, "content": "<think> and"}, *conversation("what?")]
            (output,) = thinking.chat(messages, GREEDY, use_tqdm=False)
            assert output.prompt_token_ids.count(spare) == 1


def test_special_tokens_across_parts_stay_text(llm: LLM) -> None:
    """Nor can a special token be put together from neighbouring parts."""
    image, eos = llm.get_tokenizer().convert_tokens_to_ids(["<image>", "</s>"])
    joined = "{% for m in messages %}{% for c in m['content'] %}{{ c['text'] }}{% endfor %}{% endfor %}"
    for pieces in (["<ima", "ge>"], ["x <", "/s> y"], ["<", "im", "age>"]):
        parts = [{"type": "text", "text": piece} for piece in pieces]
        for messages in ([{"role": "user", "content": parts}], [{"role": "user", "content": [part]} for part in parts]):
            (output,) = llm.chat(messages, GREEDY, use_tqdm=False, chat_template=joined)
            assert not {image, eos} & set(output.prompt_token_ids)
            assert "".join(pieces) in llm.get_tokenizer().decode(output.prompt_token_ids)


TEMPLATES = {
    "text for the assistant, parts for others": (
        "{% for m in messages %}{{ m['role'].upper() + ': ' }}{% if m['role'] == 'assistant' %}{{ m['content'] + ' ' }}"
        "{% else %}{% for c in m['content'] %}"
        "{{ '<image>\n' if c['type'] == 'image' else c['text'] + ' ' }}{% endfor %}"
        "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
    ),
    "parts only, as LLaVA-1.5's": (
        "{% for m in messages %}{{ m['role'].upper() + ': ' }}"
        "{% for c in m['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>\n' }}{% endfor %}"
        "{% for c in m['content'] | selectattr('type', 'equalto', 'text') %}{{ c['text'] + ' ' }}{% endfor %}"
        "{% endfor %}{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
    ),
    "text only": (
        "{% for m in messages %}{{ m['role'].upper() + ': ' + m['content'] + ' ' }}{% endfor %}"
        "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
    ),
}


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
def test_templates_over_parts_and_over_text(llm: LLM, template: str) -> None:
    """Whatever form of content a template takes, every turn's text and every image is in the prompt."""
    messages = [
        {"role": "user", "content": "What is the capital of France?"},
        {"role": "assistant", "content": "Paris"},
        *conversation("And this?", random_image(20, 20, 1)),
    ]
    (output,) = llm.chat(messages, GREEDY, use_tqdm=False, chat_template=template)
    assert output.prompt is not None
    assert output.prompt.split() == [
        "USER:", "What", "is", "the", "capital", "of", "France?", "ASSISTANT:", "Paris", "USER:", "<image>", "And",
        "this?", "ASSISTANT:",
    ]  # fmt: skip
    with pytest.raises(PromptError, match="chat template"):
        llm.chat(messages, GREEDY, use_tqdm=False, chat_template="{{ 1 / 0 }}")


CHATML = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% for c in m.tool_calls or [] %}"
    "[{{ c.function.name }}{{ c.function.arguments | tojson }}]{% endfor %}</s>\n{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}{% if shout %}{{ shout | upper }}{% endif %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
STRIPPING = CHATML.replace("m['content']", "m['content'] | trim")


@pytest.mark.parametrize("template", [CHATML, STRIPPING, "{{ bos_token }}" + CHATML])
@pytest.mark.parametrize("text", ["Well", " Well, ", "a </s> b", "x\n\n"])
def test_an_answer_is_gone_on_with(llm: LLM, template: str, text: str) -> None:
    """With `continue_final_message` the prompt is the one that transformers makes; without, a new turn begins."""
    tokenizer = llm.get_tokenizer()
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": text}]
    options: dict[str, Any] = {"chat_template": template, "tokenize": False}
    for mine, theirs in (
        ({"continue_final_message": True}, {"continue_final_message": True}),
        ({"continue_final_message": True, "add_generation_prompt": False}, {"continue_final_message": True}),
        ({}, {"add_generation_prompt": True}),
        ({"add_generation_prompt": False}, {}),
        ({"add_generation_prompt": 0}, {}),
    ):
        want = tokenizer.apply_chat_template(messages, **options, **theirs)
        (output,) = llm.chat(messages, GREEDY, use_tqdm=False, chat_template=template, **mine)
        assert output.prompt == want
        if "</s>" not in text:
            want_ids = tokenizer(want, add_special_tokens=not want.startswith("<s>"))["input_ids"]
            assert output.prompt_token_ids == want_ids


def test_going_on_with_parts_and_media(llm: LLM) -> None:
    """The last text of the last message is continued, by the checkpoint's own template."""
    messages = [
        *conversation("What?", random_image(9, 9, 1)),
        {"role": "assistant", "content": [{"type": "text", "text": "It is"}, {"type": "text", "text": " a"}]},
    ]
    (output,) = llm.chat(messages, GREEDY, use_tqdm=False, continue_final_message=True)
    assert output.prompt == "USER: <image>\nWhat? ASSISTANT: It is a"
    with pytest.raises(InvalidParameterError, match="continue_final_message"):
        llm.chat(messages, GREEDY, use_tqdm=False, continue_final_message=True, add_generation_prompt=True)
    messages[-1] = {"role": "assistant", "content": None}
    with pytest.raises(PromptError, match="the last message"):
        llm.chat(messages, GREEDY, use_tqdm=False, continue_final_message=True)
    with pytest.raises(PromptError, match="not in the prompt"):
        llm.chat(
            conversation("x"),
            GREEDY,
            use_tqdm=False,
            continue_final_message=True,
            chat_template="{{ messages|length }}",
        )


def shapes(color: str) -> int:
    """Count shapes.

    Args:
        color: Of the shapes, such as "red".
    """
    return len(color)


def test_tools_and_template_arguments(llm: LLM) -> None:
    """What transformers' `apply_chat_template` makes of them: schemas, functions, and calls with JSON text."""
    tokenizer = llm.get_tokenizer()
    schema = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    call = {"type": "function", "function": {"name": "shapes", "arguments": {"color": "röt"}}}
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    want = tokenizer.apply_chat_template(
        messages, chat_template=CHATML, tokenize=False, add_generation_prompt=True, tools=[schema, shapes], shout="now"
    )
    call["function"] = {"name": "shapes", "arguments": '{"color": "röt"}'}
    (output,) = llm.chat(
        messages, GREEDY, use_tqdm=False, chat_template=CHATML, tools=[schema, shapes],
        chat_template_kwargs={"shout": "now"},
    )  # fmt: skip
    assert output.prompt == want
    assert "röt" in want


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"tools": [{"type": "function"}, 7]}, r"tools\[1\] .*got 7"),
        ({"tools": {"type": "function"}}, "tools must"),
        ({"tools": [lambda x: x]}, r"tools\[0\]: Cannot generate JSON schema"),
        ({"tools": [{"a": {1}}]}, r"tools\[0\].a is a set"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs cannot set 'messages'"),
        ({"chat_template_kwargs": [1]}, "chat_template_kwargs must"),
        ({"chat_template": 7}, "chat_template must"),
    ],
)
def test_wrong_arguments_of_chat(llm: LLM, arguments: dict[str, Any], words: str) -> None:
    """Each is named."""
    with pytest.raises(InvalidParameterError, match=words):
        llm.chat(conversation("x"), GREEDY, use_tqdm=False, **arguments)


def test_what_a_prompt_may_have_a_conversation_may(llm: LLM) -> None:
    """Salt, priority, processor arguments and names of items reach the request."""
    image = random_image(60, 50, 21)
    messages = [{"role": "user", "content": [{"type": "image", "image": image, "uuid": "mine"}, "what?"]}]
    process = llm.engine.input_processor.process_chat
    plain, named = process(conversation("what?", image)), process(messages)
    assert plain.token_ids == named.token_ids
    assert plain.features[0].identifier != named.features[0].identifier
    assert process(messages).features[0].identifier == named.features[0].identifier
    with pytest.raises(InvalidParameterError, match=r"priority 3 .* scheduling_policy='fcfs'"):
        process(messages, priority=3)
    for salt in ("a", "b"):
        cached = [llm.chat(messages, GREEDY, use_tqdm=False, cache_salt=salt)[0].num_cached_tokens for _ in range(2)]
        assert cached[0] == 0 < cached[1]
    with pytest.raises(ProcessorKwargsError):
        llm.chat(messages, GREEDY, use_tqdm=False, mm_processor_kwargs={"colour": 1})


def test_many_conversations_and_parts_in_order(llm: LLM) -> None:
    """A list of conversations; two images in their order; bytes, file URLs and data URLs as parts."""
    import base64
    import io

    buffer = io.BytesIO()
    first, second = random_image(30, 30, 1), random_image(30, 30, 2)
    first.save(buffer, "PNG")
    url = "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
    by_url = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}, "what?"]}]
    got = llm.chat(
        [conversation("what?", first, second), conversation("what?", second, first), by_url], GREEDY, use_tqdm=False
    )
    assert got[0].outputs[0].token_ids != got[1].outputs[0].token_ids
    assert (
        got[2].outputs[0].token_ids
        == llm.chat(conversation("what?", first), GREEDY, use_tqdm=False)[0].outputs[0].token_ids
    )


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "messages must"),
        ([{"role": "user"}], r"messages\[0\].content .*list of parts"),
        ([{"role": "king", "content": "x"}], r"messages\[0\].role "),
        ([{"role": "user", "content": [{"type": "smell"}]}], r"messages\[0\].content\[0\]: type 'smell' is not known"),
        ([{"role": "user", "content": [{"type": "text"}]}], r"messages\[0\].content\[0\]: .* a string under 'text'"),
        ([{"role": "user", "content": [{"type": "image"}]}], r"messages\[0\].content\[0\]: .* needs 'image'"),
    ],
)
def test_malformed_messages(llm: LLM, messages: Any, message: str) -> None:
    """The part at fault is named."""
    with pytest.raises(CorellmError, match=message):
        llm.chat([messages], GREEDY, use_tqdm=False)


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ("hi", "got 'hi'; .*" + re.escape('[{"role": "user", "content": "..."}]')),
        (["hi"], "got 'hi'; "),
        ({"role": "user", "content": "hi"}, ".*into a list"),
        (5, "got 5$"),
    ],
)
def test_what_is_no_conversation(llm: LLM, messages: Any, message: str) -> None:
    """It is named whole, not its first letter or key, with the way out."""
    with pytest.raises(PromptError, match=r"messages must .*\{role, content\}, " + message):
        llm.chat(messages, GREEDY, use_tqdm=False)


# --- the rest ---------------------------------------------------------------------------------------------------------


def test_prefix_cache_tells_images_apart(llm: LLM) -> None:
    """Equal token ids, different images: nothing of the first image is reused for the second; the same one is."""
    llm.engine.scheduler.blocks.reset_prefix_cache()
    first = llm.generate(ask(random_image(60, 50, 11)), GREEDY, use_tqdm=False)[0]
    again = llm.generate(ask(random_image(60, 50, 11)), GREEDY, use_tqdm=False)[0]
    other = llm.generate(ask(random_image(60, 50, 12)), GREEDY, use_tqdm=False)[0]
    salted = llm.generate(ask(random_image(60, 50, 11), cache_salt="tenant"), GREEDY, use_tqdm=False)[0]
    assert first.num_cached_tokens == 0
    assert again.num_cached_tokens > 16
    assert again.outputs[0].token_ids == first.outputs[0].token_ids
    assert other.num_cached_tokens < 16
    assert salted.num_cached_tokens == 0


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_close_to_float32(llm: LLM, tiny_llava: Path, dtype: str) -> None:
    """Log-probabilities of the first token stay near float32's: packed weights and batched attention included."""
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=5)
    (want,) = llm.generate(ask(), params, use_tqdm=False)
    with LLM(str(tiny_llava), dtype=dtype) as half:
        (got,) = half.generate(ask(), params, use_tqdm=False)
    assert want.outputs[0].logprobs
    assert got.outputs[0].logprobs
    best = want.outputs[0].logprobs[0]
    common = set(best) & set(got.outputs[0].logprobs[0])
    assert len(common) >= 3
    for token in common:
        assert got.outputs[0].logprobs[0][token].logprob == pytest.approx(best[token].logprob, abs=0.25)


def test_leaving_the_context_frees_the_model(tiny_llava: Path) -> None:
    """Weights and caches go with the `with` block."""
    with LLM(str(tiny_llava)) as llm:
        llm.generate("hello", GREEDY, use_tqdm=False)
        model = weakref.ref(llm.engine.runner.model)
        runner = weakref.ref(llm.engine.runner)
    gc.collect()
    assert model() is None
    assert runner() is None


def test_metrics(llm: LLM) -> None:
    """Times are in order, tokens are counted, and both sets of names say the same."""
    params = SamplingParams(n=2, max_tokens=4, ignore_eos=True)
    (output,) = llm.generate(ask(), params, use_tqdm=False)
    m = output.metrics
    assert m is not None
    times = [m.arrival_time, m.queued_ts, m.scheduled_ts, m.first_token_ts, m.last_token_ts, m.finished_time]
    known = [time for time in times if time is not None]
    assert len(known) == len(times)
    assert known == sorted(known)
    assert m.first_token_ts is not None
    assert m.last_token_ts is not None
    assert m.first_token_ts < m.last_token_ts
    assert m.num_generation_tokens == 8
    assert m.first_token_latency == m.first_token_ts - m.arrival_time == m.time_to_first_token
    assert (m.first_scheduled_time, m.first_token_time) == (m.scheduled_ts, m.first_token_ts)


# --- threads, signals, the end ----------------------------------------------------------------------------------------


def test_threads_take_turns(llm: LLM) -> None:
    """Calls from several threads at once give what each gives alone."""
    prompts = [f"USER: {word} ASSISTANT:" for word in ("a", "b", "hello", "what")]
    wanted = [tokens(llm, prompt) for prompt in prompts]
    with ThreadPoolExecutor(len(prompts)) as pool:
        assert list(pool.map(partial(tokens, llm), prompts)) == wanted


def test_a_call_without_a_bar_waits_for_no_bar(llm: LLM) -> None:
    """Such as one whose call was interrupted while it held tqdm's lock."""
    with ThreadPoolExecutor(1) as pool, tqdm.get_lock():
        assert pool.submit(tokens, llm, "USER: a ASSISTANT:").result(600)


def test_a_call_within_a_call_is_refused(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a signal handler would make it; the outer call goes on."""
    wanted, step, refused = tokens(llm, "USER: a ASSISTANT:"), llm.engine.step, []

    def stepping() -> Any:
        if not refused:
            with pytest.raises(RequestError, match="same thread") as caught:
                llm.generate("hi", GREEDY, use_tqdm=False)
            refused.append(caught.value)
        return step()

    monkeypatch.setattr(llm.engine, "step", stepping)
    assert tokens(llm, "USER: a ASSISTANT:") == wanted
    assert refused


def test_a_thread_waits_while_another_one_takes_its_turn(llm: LLM) -> None:
    """A call that is over says nothing of who holds the engine now."""
    (want,) = llm.generate("USER: a ASSISTANT:", GREEDY, use_tqdm=False)
    with ThreadPoolExecutor(1) as other:
        other.submit(llm._turn.acquire).result()  # as far as it comes before it says whose turn it is
        Timer(0.1, llm._turn.release).start()
        (output,) = llm.generate("USER: a ASSISTANT:", GREEDY, use_tqdm=False)
    assert output.outputs[0].token_ids == want.outputs[0].token_ids


@pytest.mark.parametrize("same_thread", [True, False], ids=["signal handler", "other thread"])
def test_closing_beside_a_call(tiny_llava: Path, monkeypatch: pytest.MonkeyPatch, same_thread: bool) -> None:
    """The call ends after its step with a sentence, and so does everything after it."""
    closing = LLM(str(tiny_llava), dtype="float32", num_kv_blocks=64)
    step, others = closing.engine.step, ThreadPoolExecutor(1)
    closed: list[Any] = []

    def stepping() -> Any:
        outputs = step()
        if same_thread:
            closing.close()
        elif not closed:
            closed.append(others.submit(closing.close))
            while not closing._closed:
                pass
        return outputs

    monkeypatch.setattr(closing.engine, "step", stepping)
    with pytest.raises(EngineDeadError, match="is closed"):
        tokens(closing, "hi", SamplingParams(max_tokens=50, ignore_eos=True))
    others.shutdown()
    with pytest.raises(EngineDeadError, match="shut down"):
        closing.engine.runner  # noqa: B018
    with pytest.raises(EngineDeadError, match="is closed"):
        tokens(closing, "hi")
    with pytest.raises(EngineDeadError, match="shut down"):
        step()


def test_a_step_that_cannot_be_launched_is_undone(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception out of the worker reaches the caller as it is, and the next call is right."""
    wanted = tokens(llm, ask())

    def fail(batch: Any) -> Any:
        raise MemoryError("no host memory")

    with monkeypatch.context() as patch:
        patch.setattr(llm.engine.runner, "launch", fail)
        with pytest.raises(MemoryError, match="no host memory"):
            tokens(llm, ask())
    assert tokens(llm, ask()) == wanted
