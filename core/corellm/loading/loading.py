"""Loads one model: its weights, processing, caches, scheduler and graphs.

Memory is allocated in the order in which its size is known: weights, the profile run, then KV blocks with what is left.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from corellm.attention.backend import AttentionBackend
from corellm.attention.graph import Graph, NotCapturable
from corellm.attention.registry import reasons_against, select_backend
from corellm.config import EngineConfig
from corellm.errors import ConfigError
from corellm.frontend.input_processor import InputProcessor
from corellm.frontend.stated_parts import longest_whole
from corellm.hookspecs import ModelContext
from corellm.loading.checkpoint import naming_unknown_tokens
from corellm.loading.deferred_imports import deferring
from corellm.loading.dummy_steps import (
    capture_graphs,
    check_additions,
    check_trimming,
    count_position_rows,
    profile_run,
)
from corellm.loading.features import (
    cache_bytes,
    embeddings_at_once,
    make_cache,
    make_parts,
    make_users,
    most_states,
    most_whole,
    with_kept_states,
)
from corellm.loading.locating import LocatedModel
from corellm.loading.model_parts import ModelParts, load_weights
from corellm.loading.opening import (
    OpenedModel,
    at_load,
    make_input_processor,
    make_mm_processor,
    open_model,
)
from corellm.loading.remote_code import no_questions
from corellm.loading.rope import freeze_rope
from corellm.loading.sizing import (
    Sizes,
    most_captured_rows,
    plan_sizes,
    sequences_at_once,
    token_budget,
    wanted_len,
)
from corellm.loading.weight_key import weight_source
from corellm.loading.weight_places import WeightPlace
from corellm.multimodal.profile import DummyProfile
from corellm.plugin.extensions import first_result
from corellm.plugin.hook_callers import HookCallers, adapter_implements
from corellm.sampling.extensions import SamplingExtensions, find_extensions
from corellm.sampling.sampling_state import SamplingState
from corellm.scheduling.block_manager import BlockManager
from corellm.scheduling.block_pool import BlockPool
from corellm.scheduling.block_user import BlockUser
from corellm.scheduling.encoder_cache import EncoderCache
from corellm.scheduling.scheduler import Scheduler
from corellm.system.devices import keep_float32, on_device
from corellm.system.memory import DeviceMemory
from corellm.system.process import usable_cpus
from corellm.transformers_releases import warn_if_untested
from corellm.worker.decode_graphs import graph_sizes, plan_sizes_for_cpu, sizes_at_load
from corellm.worker.graphs import CudaGraph
from corellm.worker.kv_cache import QUANTIZED, cache_dtype
from corellm.worker.model_runner import ModelRunner

logger = logging.getLogger(__name__)


@dataclass
class LoadedModel:
    """The parts of a loaded model that the engine uses."""

    context: ModelContext
    input_processor: InputProcessor
    scheduler: Scheduler
    runner: ModelRunner
    executor: ThreadPoolExecutor
    eos_token_ids: frozenset[int]
    max_model_len: int
    closing: ExitStack = field(default_factory=ExitStack)
    """What is closed with the engine."""
    places: Mapping[str, WeightPlace] = field(default_factory=dict)
    """Where the weights are; none where more than the model itself is made of a checkpoint's weights."""
    capture: Callable[[], None] | None = None
    """Captures graphs, where they cannot outlive their memory: on a GPU."""


def load(config: EngineConfig, located: LocatedModel, *, check_encoders: bool = True) -> LoadedModel:
    """Load a model and build the parts of its engine.

    Args:
        config: of the engine.
        located: the checkpoint.
        check_encoders: embed the adapter's dummy items as a check.

    Raises:
        CheckpointError, PluginError, ConfigError: what is wrong, and the way out.
    """
    warn_if_untested()
    with at_load(config.model.model), no_questions(), deferring(), ExitStack() as on_failure:
        opened = open_model(config, located)
        on_failure.callback(opened.templates.close)
        keep_float32(opened.context.device)
        with on_device(opened.context.device):
            model = opened.use.load(config, opened, on_failure) or _load(config, opened, on_failure)
            if check_encoders:
                model.runner.encoders.check(model.input_processor.mm_processor.profile.features)
        on_failure.callback(model.input_processor.close)
        model.closing = on_failure.pop_all()
        return model


def _load(config: EngineConfig, opened: OpenedModel, on_failure: ExitStack) -> LoadedModel:
    """Load the weights, divide the rest of the memory, and build the engine's parts in it.

    What has threads or processes is put on `on_failure`, to be closed if loading fails.
    """
    context, hooks = opened.context, opened.hooks
    backend, kv_dtype = _choose_attention(config, context)
    logger.info(
        "%s on %s in %s, attention by the backend %r", config.model.model, context.device, context.dtype, backend.name
    )
    memory = DeviceMemory(context.device, config.cache.gpu_memory_utilization)
    with memory.explaining("the weights", "take a smaller or quantized model, or free the device of other processes"):
        weights = load_weights(config, opened, backend, weight_source(config, opened))
    executor = ThreadPoolExecutor(max_workers=usable_cpus(), thread_name_prefix="corellm-processor")
    on_failure.callback(executor.shutdown, wait=False, cancel_futures=True)
    config, weights = with_kept_states(config, context, weights, memory)
    extensions = find_extensions(context.tokenizer, weights.vocab_size)
    executor.submit(extensions.prepare)
    make_runner = partial(_make_runner, config, context, hooks, weights, backend, kv_dtype, extensions)
    mm_processor = make_mm_processor(config, opened, executor, wanted_len(config, context))
    on_failure.callback(mm_processor.close)
    mm_processor.start()
    with naming_unknown_tokens(context):
        profile = mm_processor.profile
    whole = longest_whole(hooks, profile.prompts, profile.features, wanted_len(config, context))
    whole = most_whole(weights, whole)
    if weights.added:
        check_additions(make_runner(num_blocks=1), weights.added)
    _measure_profile_run(config, context, make_runner, profile, whole, memory)

    cache = cache_bytes(config, context, weights, kv_dtype, whole)
    sizes = plan_sizes(config, context, cache, memory, most_states(weights, mm_processor.profile))
    freeze_rope(weights.language_model, sizes.max_model_len)
    context.max_model_len = opened.longest_prompt(sizes.max_model_len)
    if context.max_model_len < max(mm_processor.profile.max_tokens.values(), default=0):  # the dummies must fit
        mm_processor.close()
        mm_processor = make_mm_processor(config, opened, executor, sizes.max_model_len)
        on_failure.callback(mm_processor.close)
    runner = _allocate(make_runner, sizes, memory)
    capture = None
    if reasons := ", ".join(filter(None, (part.uncapturable for part in runner.parts))):
        logger.info("decode steps do not run as graphs: %s", reasons)
    elif backend.capturable and not config.model.enforce_eager:
        capture = partial(_capture_graphs, config, context, runner, backend, sizes, mm_processor.profile)
        with memory.explaining("graphs", "lower gpu_memory_utilization or max_num_seqs, or set enforce_eager"):
            capture()
    runner.touch_cache(sizes.token_budget)
    # else a part gives the decoder more, or adds to rows of all tokens, in every step
    reads_all = any(part.reads_all_tokens for part in runner.parts)
    if runner.samples and runner.merges_items and not weights.added and not reads_all:
        check_trimming(runner)
    return LoadedModel(
        context=context,
        input_processor=make_input_processor(
            config, opened, mm_processor, weights.vocab_size, weights.embedding_size, sizes.max_model_len, extensions
        ),
        scheduler=make_scheduler(
            config,
            sizes,
            largest_item=embeddings_at_once(config, weights, mm_processor.profile, sizes),
            longest_whole=whole,
            make_users=partial(make_users, config, weights, sizes),
        ),
        runner=runner,
        executor=executor,
        eos_token_ids=_eos_token_ids(weights.model, context),
        max_model_len=sizes.max_model_len,
        places=weights.places if weights.make_runner is None else {},
        capture=capture if runner.device.type == "cuda" else None,
    )


def _allocate(make_runner: Callable[..., ModelRunner], sizes: Sizes, memory: DeviceMemory) -> ModelRunner:
    """Return the runner with its KV cache, and the caches that its parts have."""
    with memory.explaining("KV blocks", "lower gpu_memory_utilization, kv_cache_memory or num_kv_blocks"):
        runner = make_runner(
            num_blocks=sizes.num_blocks, num_host_blocks=sizes.num_host_blocks, num_places=sizes.num_places
        )
        for part in runner.parts:
            part.allocate(sizes.num_blocks)
    return runner


def _measure_profile_run(
    config: EngineConfig,
    context: ModelContext,
    make_runner: Callable[..., ModelRunner],
    profile: DummyProfile,
    whole: int,
    memory: DeviceMemory,
) -> None:
    """Measure the memory of the largest step that the configuration allows."""
    longest = wanted_len(config, context)
    with memory.explaining(
        "the profile run",
        "lower max_num_batched_tokens, limit_mm_per_prompt or the size of items (mm_processor_kwargs)",
    ):
        memory.measure_peak(
            lambda: profile_run(
                make_runner(num_blocks=1),
                token_budget(config, context, longest) + whole,
                sequences_at_once(config, context),
                longest,
                profile.features,
            )
        )


def _choose_attention(config: EngineConfig, context: ModelContext) -> tuple[AttentionBackend, torch.dtype]:
    """Return the attention backend and the dtype of its cache."""
    backend = select_backend(context.device, context.dtype, config.model.attention_backend)
    kv_dtype = cache_dtype(config.cache.kv_cache_dtype, context.dtype)
    has = backend.quantized_dtypes(context.device)
    if kv_dtype in QUANTIZED and kv_dtype not in has:
        against = reasons_against(context.device, context.dtype)
        others = ", ".join(f"{name} ({reason})" for name, reason in against.items())
        names = ", ".join(str(dtype).removeprefix("torch.") for dtype in has)
        raise ConfigError(
            f"kv_cache_dtype={config.cache.kv_cache_dtype!r}: the attention backend {backend.name!r} has no such cache "
            f"on {context.device} (quantized ones that it has: {names or 'none'}); leave it out"
            + (f"; backends that cannot run here: {others}" if others else "")
        )
    return backend, kv_dtype


def make_scheduler(
    config: EngineConfig,
    sizes: Sizes,
    largest_item: int,
    longest_whole: int | None = None,
    make_users: Callable[[BlockPool], Sequence[BlockUser]] = lambda pool: (),
) -> Scheduler:
    """Return the scheduler with its block manager and an encoder cache that holds the largest item.

    It also holds the items of `longest_whole` tokens, which must be computed in one step: each of their embeddings has
    a token there.
    """
    given = config.scheduler.encoder_cache_size
    whole = min(longest_whole or 0, sizes.max_model_len)
    per_step = max(sizes.token_budget if given is None else given, largest_item, whole)
    kept = max(per_step, sizes.kept_embeds) if given is None else per_step
    return Scheduler(
        config.scheduler,
        BlockManager(
            sizes.num_blocks,
            config.cache.block_size,
            enable_prefix_caching=config.cache.enable_prefix_caching,
            num_host_blocks=sizes.num_host_blocks,
            make_users=make_users,
        ),
        EncoderCache(kept, per_step),
        max_model_len=sizes.max_model_len,
        max_num_seqs=sizes.max_num_seqs,
        max_num_batched_tokens=sizes.token_budget,
        longest_whole=longest_whole,
    )


def _embedding_width(hooks: HookCallers, weights: ModelParts) -> int | None:
    """Return the width of items' embeddings; None where the adapter merges them itself: then its dummies show it."""
    stated = hooks.get_multimodal_embedding_width(model=weights.model)
    return stated or (None if adapter_implements(hooks.merge_multimodal_embeddings) else weights.hidden_size)


def _make_runner(
    config: EngineConfig,
    context: ModelContext,
    hooks: HookCallers,
    weights: ModelParts,
    backend: AttentionBackend,
    kv_dtype: torch.dtype,
    extensions: SamplingExtensions,
    *,
    num_blocks: int,
    num_host_blocks: int = 0,
    num_places: int | None = None,
) -> ModelRunner:
    """Return the model runner, with its KV cache allocated."""
    block_size = config.cache.block_size
    cache = make_cache(weights, block_size, kv_dtype, context.device, num_blocks, num_host_blocks, num_places)
    make = weights.make_runner or ModelRunner
    return make(
        hooks,
        weights.model,
        weights.language_model,
        cache,
        backend,
        block_size=block_size,
        embedding_width=_embedding_width(hooks, weights),
        dtype=context.dtype,
        device=context.device,
        new_sampling=partial(
            SamplingState,
            vocab_size=weights.vocab_size,
            engine_seed=secrets.randbits(63) if config.model.seed is None else config.model.seed,
            extensions=extensions,
        ),
        vocab_size=min(weights.vocab_size, weights.embedding_size),
        sample=first_result("register_sampling", callable, device=context.device),
        make_parts=partial(make_parts, weights, cache),
    )


def _capture_graphs(
    config: EngineConfig,
    context: ModelContext,
    runner: ModelRunner,
    backend: AttentionBackend,
    sizes: Sizes,
    profile: DummyProfile,
) -> None:
    """Capture decode steps; on a GPU also encoders of items that all have one shape."""
    make_graph: Callable[[], Graph]
    num_drafts = max((part.most_drafts for part in runner.parts), default=0)
    rows = min(sizes.max_num_seqs * (1 + num_drafts), most_captured_rows(config, context))
    at_once = None
    if runner.device.type == "cuda":
        stream = torch.cuda.Stream(runner.device)  # type: ignore[no-untyped-call]
        make_graph = partial(CudaGraph, torch.cuda.graph_pool_handle(), stream)
        runner.encoders.capture_graphs(profile.features, make_graph)
        batches = graph_sizes(rows)
    elif backend.make_graph is not None:
        make_graph, batches = backend.make_graph, plan_sizes_for_cpu(rows)
        at_once = sizes_at_load(batches, num_drafts)
    else:
        return
    if not runner.samples:  # then no step is a decode
        return
    known = zip(profile.prompts, profile.features, strict=True)
    try:
        position_rows = max((count_position_rows(runner, *dummy) for dummy in known), default=1)
    except NotCapturable as reason:
        logger.warning("decode steps do not run as graphs: %s", reason)
        return
    capture_graphs(
        runner,
        batches,
        max_blocks=-(-sizes.max_model_len // config.cache.block_size),
        position_rows=position_rows,
        make_graph=make_graph,
        at_once=at_once,
    )


def _eos_token_ids(model: Any, context: ModelContext) -> frozenset[int]:
    """Return the end-of-sequence tokens of the generation configuration and the tokenizer."""
    stated = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    listed = stated if isinstance(stated, (list, tuple)) else [stated]
    return frozenset(token for token in (*listed, context.tokenizer.eos_token_id) if token is not None)
