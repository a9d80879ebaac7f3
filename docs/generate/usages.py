"""Usages of vLLM's Python interface that work here, unchanged or differently: tables of `run/from-vllm.md`.

`extensions/vllm/tests/test_usages.py` runs every usage, with the names that its fixture `setup` defines. The tables of
what corellm does not have come from `corellm_vllm.absent`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pkgutil import walk_packages
from typing import TYPE_CHECKING

import corellm_vllm
from corellm_vllm.absent.engine import RENAMED
from extensions.vllm.tests.kinds import KINDS

if TYPE_CHECKING:
    from corellm.known_fields import Absent

SAME: dict[str, tuple[str, ...]] = {
    "loading": (
        'LLM(model="demo")',
        'LLM("demo", dtype="bfloat16")',
        'LLM("demo", dtype=None)',
        'LLM("demo", trust_remote_code=True)',
        'LLM("demo", revision="main")',
        'LLM("demo", seed=7)',
        'LLM("demo", seed=None)',
        'LLM("demo", dtype="half")',
        'LLM("demo", dtype=torch.float32)',
        'LLM("demo", tokenizer="demo")',
        'LLM("demo", hf_overrides={"text_config": {"max_position_embeddings": 256}})',
        'LLM("demo", load_format="dummy")',
        'LLM("demo", generation_config="vllm")',
        'LLM("demo", limit_mm_per_prompt={"image": {"count": 2, "width": 56, "height": 56}})',
        'LLM("demo", max_model_len=512)',
        'LLM("demo", gpu_memory_utilization=0.8)',
        'LLM("demo", swap_space=4)',
        'LLM("demo", block_size=16)',
        'LLM("demo", enforce_eager=True)',
        'LLM("demo", kv_cache_dtype="fp8")',
        'LLM("demo", enable_prefix_caching=None)',
        'LLM("demo", enable_chunked_prefill=True)',
        'LLM("demo", max_num_seqs=16)',
        'LLM("demo", max_num_batched_tokens=1024)',
        'LLM("demo", scheduling_policy="priority")',
        'LLM("demo", limit_mm_per_prompt={"image": 2})',
        'LLM("demo", mm_processor_kwargs=None)',
        'LLM("demo", mm_processor_cache_gb=0)',
        'LLM("demo", allowed_media_domains=["example.org"])',
        'LLM("demo", task="generate")',
        'LLM("demo", task="embed")',
        'LLM("demo", runner="pooling", override_pooler_config={"pooling_type": "MEAN"})',
        'LLM("demo", num_gpu_blocks_override=64)',
        'LLM("demo", kv_cache_memory_bytes=1 << 26)',
        'LLM(**asdict(EngineArgs(model="demo", max_model_len=512)))',
        'LLM.from_engine_args(EngineArgs("demo"))',
    ),
    "prompts": (
        'llm.generate("Hello")',
        'llm.generate(["Hello", "Good morning"])',
        'llm.generate("Hello", SamplingParams(temperature=0))',
        "llm.generate(prompts=prompts, sampling_params=params)",
        "llm.generate(prompts, [params, params])",
        "llm.generate(prompts, params, use_tqdm=False)",
        "llm.generate(prompts, params, use_tqdm=tqdm)",
        "llm.generate(prompts, params, lora_request=None)",
        "llm.generate(prompts, params, priority=[1, 0])",
        'llm.generate({"prompt": "Hello"})',
        'llm.generate(TextPrompt(prompt="Hello"))',
        'llm.generate({"prompt": asked, "multi_modal_data": {"image": image}}, params)',
        'llm.generate({"prompt": asked, "multi_modal_data": {"image": [image]}}, params)',
        'llm.generate({"prompt": asked, "multi_modal_data": {"image": image}, "mm_processor_kwargs": {}}, params)',
        'llm.generate({"prompt": asked, "multi_modal_data": {"image": image}, "multi_modal_uuids": {"image": "a"}})',
        'llm.generate({"prompt": "Hello", "cache_salt": "mine"}, params)',
        "llm.generate([5, 6, 7], params)",
        "llm.generate([[5, 6, 7], [8, 9]], params)",
        'llm.generate({"prompt_token_ids": [5, 6, 7]}, params)',
        "llm.generate(TokensPrompt(prompt_token_ids=[5, 6, 7]), params)",
        'llm.generate({"prompt_token_ids": np.array([5, 6, 7])}, params)',
        'llm.generate({"prompt_token_ids": torch.tensor([5, 6, 7])}, params)',
        'llm.generate(tokenizer(["Hello", "Good morning"])["input_ids"], params)',
    ),
    "conversations": (
        "llm.chat(messages)",
        "llm.chat(messages, params)",
        "llm.chat(messages=messages, sampling_params=params, use_tqdm=False)",
        "llm.chat([messages, messages], params)",
        "llm.chat(messages, params, chat_template=None)",
        'llm.chat(messages, params, chat_template="{{ messages[0].content }}")',
        "llm.chat(messages, params, add_generation_prompt=True)",
        "llm.chat(messages, params, mm_processor_kwargs=None)",
        "llm.chat(messages, params, continue_final_message=False)",
        'llm.chat(messages, params, chat_template_kwargs={"enable_thinking": False})',
        "llm.chat(messages, params, tools=None)",
        "llm.chat(messages, params, lora_request=None)",
        'llm.chat(messages, params, chat_template_content_format="auto")',
        "llm.chat(messages_with_image_url, params)",
    ),
    "sampling": (
        "SamplingParams(n=2)",
        "SamplingParams(temperature=0.8, top_p=0.95, top_k=-1, min_p=0.1)",
        "SamplingParams(temperature=0)",
        "SamplingParams(presence_penalty=0.5, frequency_penalty=0.5, repetition_penalty=1.1)",
        "SamplingParams(seed=7)",
        "SamplingParams(max_tokens=None)",
        "SamplingParams(max_tokens=64, min_tokens=2)",
        'SamplingParams(stop="\\n")',
        'SamplingParams(stop=["\\n", "USER"], include_stop_str_in_output=True)',
        "SamplingParams(stop_token_ids=[2])",
        'SamplingParams(bad_words=["never"])',
        "SamplingParams(logprobs=5, prompt_logprobs=1)",
        "SamplingParams(logprobs=-1)",
        "SamplingParams(truncate_prompt_tokens=4)",
        "SamplingParams(spaces_between_special_tokens=False)",
        "SamplingParams(output_kind=RequestOutputKind.FINAL_ONLY)",
        "SamplingParams(temperature=0).clone()",
        "SamplingParams(logit_bias={7: -100})",
        "SamplingParams(allowed_token_ids=[5, 6])",
        "SamplingParams(ignore_eos=True)",
        "SamplingParams(skip_special_tokens=False)",
        "SamplingParams(detokenize=False)",
    ),
    "outputs": (
        "output.request_id",
        "output.prompt",
        "output.prompt_token_ids",
        "output.prompt_logprobs",
        "output.num_cached_tokens",
        "output.finished",
        "output.metrics.arrival_time",
        "output.metrics.first_token_time",
        "output.metrics.finished_time",
        "output.metrics.first_token_latency",
        "output.metrics.queued_ts",
        "output.metrics.last_token_ts",
        "output.metrics.num_generation_tokens",
        "output.multi_modal_placeholders",
        "output.outputs[0].index",
        "output.outputs[0].text",
        "output.outputs[0].token_ids",
        "output.outputs[0].finish_reason",
        "output.outputs[0].stop_reason",
        "output.outputs[0].cumulative_logprob",
        "output.outputs[0].logprobs[0][output.outputs[0].token_ids[0]].logprob",
        "output.outputs[0].logprobs[0][output.outputs[0].token_ids[0]].rank",
        "output.outputs[0].logprobs[0][output.outputs[0].token_ids[0]].decoded_token",
    ),
    "the loaded model": (
        "llm.get_tokenizer()",
        "llm.get_default_sampling_params()",
        "llm.apply_model(lambda model: type(model).__name__)",
        "llm.reset_prefix_cache()",
        "llm.reset_mm_cache()",
        'llm.sleep(level=1); llm.wake_up(tags=["weights", "kv_cache"])',
        "llm.llm_engine.get_tokenizer()",
        "del llm",
    ),
    "`LLMEngine`": (
        'LLMEngine.from_engine_args(EngineArgs("demo"))',
        'engine.add_request("0", "Hello", params)',
        'engine.add_request("0", "Hello", params, lora_request=None)',
        "engine.has_unfinished_requests()",
        "engine.get_num_unfinished_requests()",
        "engine.step()",
        'engine.abort_request("0")',
        'engine.abort_request(["0", "1"])',
        "engine.reset_prefix_cache()",
        "engine.sleep(2); engine.is_sleeping(); engine.wake_up()",
        "engine.get_metrics()",
    ),
    "command lines": (
        "EngineArgs.add_cli_args(FlexibleArgumentParser()).parse_args(['--model', 'demo', '--max_model_len', '512'])",
        "EngineArgs.from_cli_args(args)",
        "LLM(**vars(args))",
    ),
    "media": (
        'ImageAsset("stop_sign").pil_image',
        'VideoAsset(name="baby_reading", num_frames=4).np_ndarrays',
        'AudioAsset("mary_had_lamb").audio_and_sample_rate',
        "encode_image_url(image)",
        "fetch_image(encode_image_url(image))",
        'convert_image_mode(image, "RGB")',
    ),
    "pooled requests": (
        "PoolingParams()",
        'PoolingParams(task="embed", dimensions=16)',
        "PoolingParams(normalize=False)",
    ),
    "`AsyncLLM`": (
        '[output async for output in async_llm.generate("Hello", params, "mine")]',
        '[output async for output in async_llm.generate("Hello", params, request_id="mine", lora_request=None)]',
        '[output async for output in async_llm.generate("Hello", params, "mine", priority=1)]',
        'await async_llm.abort("mine")',
        'await async_llm.abort(["mine", "yours"])',
        "await async_llm.get_tokenizer()",
        "await async_llm.check_health()",
        "await async_llm.reset_prefix_cache()",
        "await async_llm.reset_mm_cache()",
        "await async_llm.sleep(level=1); await async_llm.is_sleeping(); await async_llm.wake_up()",
        "async_llm.is_running",
        "async_llm.errored",
    ),
}
"""`{subject: usages that work unchanged}`."""

DIFFERENT: dict[str, str] = {
    "with LLM(model) as llm: ...": "leaving the block frees the device; so does `llm.shutdown()`, and `del llm`, if it "
    "is the only reference",
    "llm.generate(prompts, params, on_error='return')": "a wrong prompt does not end the others; its error is raised "
    "after they are finished, or left in its output's `error`",
    "output.outputs[0].finished": "an attribute, not a method",
    "llm.get_metrics()": "names begin with `corellm:`; counters and gauges, counted also with `disable_log_stats=True`",
    "llm.start_profile()": "the trace goes into a file in the current directory, or into `start_profile(trace_file)`; "
    "no environment variable is read",
    "llm.stop_profile()": "returns the trace's file",
    "llm.update_weights(directory)": "takes a directory of safetensors, or tensors by the checkpoint's names",
    "llm.engine": "corellm's own engine, beside `llm.llm_engine`; its configuration is `llm.engine.config`",
    "async_llm.dead": "the `EngineDeadError`, or None while it serves, instead of `dead_error`",
    "[output async for output in async_llm.chat(messages, params)]": "applies the chat template itself",
    'ImageAsset("stop_sign").get_path()': "assets are drawn from their name: nothing is downloaded, and no published "
    "photograph, video or recording is meant",
}
"""`{usage: how it differs from vLLM's}`."""


def same() -> str:
    """Return a table of what works unchanged."""
    return _table(["about", "usage"], [[about, _code(usage)] for about, usages in SAME.items() for usage in usages])


def different() -> str:
    """Return a table of what works differently."""
    return _table(["usage", "how it differs"], [[_code(usage), how] for usage, how in DIFFERENT.items()])


def modules() -> dict[str, list[str]]:
    """Return the names of each module of `corellm_vllm` that scripts import from."""
    found = {}
    for module in (
        corellm_vllm.__name__,
        *(info.name for info in walk_packages(corellm_vllm.__path__, "corellm_vllm.")),
    ):
        loaded = importlib.import_module(module)
        if "__all__" in vars(loaded) and not module.startswith("corellm_vllm.absent"):
            found[module] = sorted(vars(loaded)["__all__"])
    return found


def imports() -> str:
    """Return a table of modules and their names."""
    return _table(
        ["from", "import"], [[_code(module), ", ".join(map(_code, names))] for module, names in modules().items()]
    )


def scripts() -> str:
    """Return a table of the kinds of scripts that vLLM's examples show, and what becomes of each."""
    rows = [
        [kind.like, "runs" if kind.error is None else f"refused: {_code(kind.error.__name__)}"]
        for kind in KINDS.values()
    ]
    return _table(["like", "here"], rows)


def renamed() -> str:
    """Return a table of arguments that have another name in corellm."""
    return _table(["argument", "corellm's own"], [[_code(old), _code(new)] for old, new in RENAMED.items()])


def absent(module: str, table: str) -> str:
    """Return a table of what corellm does not have, from a module of `corellm_vllm.absent`, or the server's `flags`.

    Raises:
        KeyError: there is no such table.
    """
    home = "corellm_server.commands.absent_flags" if module == "flags" else f"corellm_vllm.absent.{module}"
    entries: Mapping[str, Absent] = vars(importlib.import_module(home))[table]
    if any(entry.neutral for entry in entries.values()):
        rows = [
            [_code(name), ", ".join(_code(repr(value)) for value in entry.neutral), entry.instead]
            for name, entry in entries.items()
        ]
        return _table(["argument", "accepted", "otherwise"], rows)
    return _table(["name", "instead"], [[_code(name), entry.instead] for name, entry in entries.items()])


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _code(text: str) -> str:
    return f"`{text}`".replace("|", "&#124;")
