"""Puts one model together: checkpoint, adapter, tokenizer, processing, model, caches, scheduler.

The order is that of the cheapest refusal first: a missing plugin is named before anything heavy is imported.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch
from torch import nn

from corellm.attention.paged import ATTENTION_NAME, register_attention
from corellm.attention.registry import select_backend
from corellm.config import EngineConfig
from corellm.engine.block_manager import BlockManager
from corellm.engine.encoder_cache import EncoderCache
from corellm.engine.input_processor import InputProcessor
from corellm.engine.scheduler import Scheduler
from corellm.engine.text_encoder import TextEncoder
from corellm.errors import CheckpointError, ConfigError, CorellmError, raised_at
from corellm.hookspecs import LoadConfig, ModelContext
from corellm.multimodal.defaults import ProcessingDefaults
from corellm.multimodal.processor import MultiModalProcessor
from corellm.plugins import ask_class, build_manager, find_adapter, load_extensions
from corellm.worker import checkpoint as checkpoints
from corellm.worker.defaults import ModelDefaults, freeze, model_width
from corellm.worker.kv_cache import KVCache, LayerLayout, block_bytes, choose_num_blocks, probe_decoder
from corellm.worker.model_runner import ModelRunner
from corellm.worker.packed_linear import pack_linears, packing_helps
from corellm.worker.process import usable_cpus

logger = logging.getLogger(__name__)

DEFAULT_TOKEN_BUDGET = 2048


@dataclass
class LoadedModel:
    """Everything the engine loop drives."""

    context: ModelContext
    input_processor: InputProcessor
    scheduler: Scheduler
    runner: ModelRunner
    executor: ThreadPoolExecutor
    eos_token_ids: frozenset[int]
    max_model_len: int


@dataclass(frozen=True)
class _Weights:
    """The model in memory, and what running one token through it showed."""

    model: nn.Module
    language_model: nn.Module
    layout: dict[int, LayerLayout]
    hidden_size: int
    vocab_size: int
    """Width of the logits."""
    embedding_size: int
    """Token ids that can be embedded."""


@dataclass(frozen=True)
class _Sizes:
    """How much of everything: blocks on the device and on the host, tokens per sequence and per step."""

    num_blocks: int
    num_host_blocks: int
    max_model_len: int
    token_budget: int


def load(config: EngineConfig, *, check_encoders: bool = True) -> LoadedModel:
    """Load a model and build the engine's parts around it.

    Args:
        config: everything that was asked for.
        check_encoders: embed the adapter's dummy items, too; without it, what is wrong with them is found later.

    Raises:
        CheckpointError, PluginError, ConfigError: what is wrong, and the way out.
    """
    with _at_load(config.model.model):
        model = _load(config)
        if check_encoders:
            model.runner.encoders.check(model.input_processor.mm_processor.profile.features)
        return model


@contextmanager
def _at_load(model: str) -> Iterator[None]:
    """Whatever untyped error a checkpoint makes a library or an adapter raise is told in one line."""
    try:
        yield
    except CorellmError:
        raise
    except Exception as error:
        raise CheckpointError(
            f"{model}: loading failed with {type(error).__name__}: {' '.join(str(error).split())} "
            f"({raised_at(error)}); the checkpoint's files do not fit together, or its adapter is at fault"
        ) from error


def _load(config: EngineConfig) -> LoadedModel:
    context, hooks, namespace = _open_model(config)
    weights = _load_weights(hooks, context)
    sizes = _plan_sizes(config, context, weights)
    context.max_model_len = sizes.max_model_len
    executor = ThreadPoolExecutor(max_workers=usable_cpus(), thread_name_prefix="corellm-processor")
    mm_processor = MultiModalProcessor(
        hooks,
        config.multimodal,
        # adapters write the same few texts into every prompt
        tokenize=lru_cache(maxsize=256)(partial(TextEncoder(context.tokenizer), add_special_tokens=False)),
        token_text=context.tokenizer.convert_ids_to_tokens,
        namespace=namespace,
        seq_len=sizes.max_model_len,
        executor=executor,
    )
    runner = _make_runner(config, context, hooks, weights, sizes)
    return LoadedModel(
        context=context,
        input_processor=InputProcessor(
            context.tokenizer,
            hooks,
            mm_processor,
            vocab_size=weights.vocab_size,
            embedding_size=weights.embedding_size,
            max_model_len=sizes.max_model_len,
            chat_template=context.chat_template,
        ),
        scheduler=_make_scheduler(config, sizes, largest_item=max(mm_processor.profile.max_embeds.values(), default=0)),
        runner=runner,
        executor=executor,
        eos_token_ids=_eos_token_ids(weights.model, context),
        max_model_len=sizes.max_model_len,
    )


def _load_weights(hooks: Any, context: ModelContext) -> _Weights:
    """Load the model and find its decoder, layout and widths."""
    register_attention()
    model = hooks.load_model(
        load_config=LoadConfig(
            model_path=context.model_path,
            dtype=context.dtype,
            device=context.device,
            attn_implementation=ATTENTION_NAME,
            trust_remote_code=context.trust_remote_code,
        )
    )
    freeze(model)
    language_model = hooks.get_language_model(model=model)
    width = hooks.get_input_embeddings(model=model, input_ids=torch.zeros(1, dtype=torch.long)).shape[-1]
    layout, hidden = probe_decoder(language_model, width, context.dtype, context.device)
    vocab_size = hooks.compute_logits(model=model, hidden_states=hidden).shape[-1]
    embedding_size = model_width(model)
    if packing_helps(context.dtype, context.device):
        pack_linears(model)
    return _Weights(model, language_model, layout, width, vocab_size, embedding_size)


def _plan_sizes(config: EngineConfig, context: ModelContext, weights: _Weights) -> _Sizes:
    """Divide the memory: as many blocks as fit and could be used, and what follows from their number."""
    block_size = config.cache.block_size
    bytes_per_block = block_bytes(weights.layout, block_size, context.dtype)
    wanted_len = config.model.max_model_len or checkpoints.default_max_model_len(context.hf_config)
    num_blocks = choose_num_blocks(config.cache, bytes_per_block, config.scheduler.max_num_seqs * wanted_len)
    max_model_len = _max_model_len(config, context.hf_config, (num_blocks - 1) * block_size)
    budget = _token_budget(config, max_model_len)
    logger.info(
        "%s: %d KV blocks of %d tokens (%.2f GiB), sequences of up to %d tokens, %d tokens per step",
        config.model.model, num_blocks - 1, block_size, num_blocks * bytes_per_block / 2**30, max_model_len, budget,
    )  # fmt: skip
    return _Sizes(num_blocks, _swap_blocks(config, bytes_per_block, num_blocks), max_model_len, budget)


def _make_scheduler(config: EngineConfig, sizes: _Sizes, largest_item: int) -> Scheduler:
    """The scheduler with its block manager and encoder cache, which holds at least the largest item."""
    wished = config.scheduler.encoder_cache_size
    return Scheduler(
        config.scheduler,
        BlockManager(
            sizes.num_blocks,
            config.cache.block_size,
            enable_prefix_caching=config.cache.enable_prefix_caching,
            num_host_blocks=sizes.num_host_blocks,
        ),
        EncoderCache(max(sizes.token_budget if wished is None else wished, largest_item)),
        max_model_len=sizes.max_model_len,
        max_num_batched_tokens=sizes.token_budget,
    )


def _make_runner(
    config: EngineConfig, context: ModelContext, hooks: Any, weights: _Weights, sizes: _Sizes
) -> ModelRunner:
    """The worker, with the KV cache allocated."""
    block_size = config.cache.block_size
    return ModelRunner(
        hooks,
        weights.model,
        weights.language_model,
        KVCache(weights.layout, sizes.num_blocks, block_size, context.dtype, context.device, sizes.num_host_blocks),
        select_backend(context.device, context.dtype, config.model.attention_backend),
        block_size=block_size,
        vocab_size=weights.vocab_size,
        embedding_width=hooks.get_multimodal_embedding_width(model=weights.model) or weights.hidden_size,
        dtype=context.dtype,
        device=context.device,
        seed=config.model.seed,
    )


def _open_model(config: EngineConfig) -> tuple[ModelContext, Any, tuple[str, ...]]:
    """Find checkpoint and adapter; gives the context, the hook callers, and the namespace of item hashes."""
    path = checkpoints.resolve_checkpoint(config.model)
    entry = find_adapter(checkpoints.read_architectures(path), adapter=config.model.adapter)
    adapter = entry.load()
    trusted = config.model.trust_remote_code
    hf_config = checkpoints.load_hf_config(
        path, ask_class(adapter, "register_config", entry.distribution), trust_remote_code=trusted
    )
    tokenizer = checkpoints.load_tokenizer(
        path, ask_class(adapter, "register_tokenizer", entry.distribution), trust_remote_code=trusted
    )
    context = ModelContext(
        model_path=path,
        hf_config=hf_config,
        tokenizer=tokenizer,
        dtype=checkpoints.resolve_dtype(config.model.dtype, hf_config),
        device=torch.device("cpu"),
        mm_processor_kwargs=config.multimodal.mm_processor_kwargs,
        trust_remote_code=trusted,
    )
    processing = ProcessingDefaults(context, config.multimodal)
    manager = build_manager(
        adapter,
        context,
        distribution=entry.distribution,
        defaults=[processing, ModelDefaults(context)],
        extensions=load_extensions(),
    )
    processing.hooks = manager.hook
    context.make_processor = lambda: checkpoints.load_processor(context, manager.hook.register_processor())
    namespace = (str(path), config.model.revision or "", entry.distribution, entry.version)
    return context, manager.hook, namespace


def _max_model_len(config: EngineConfig, hf_config: Any, capacity: int) -> int:
    """The longest sequence: what was asked for, if model and cache can hold it, else what they can."""
    trained = checkpoints.default_max_model_len(hf_config)
    wanted = config.model.max_model_len
    if wanted is None:
        if trained > capacity:
            logger.warning("max_model_len lowered from %d to %d, what the KV cache holds", trained, capacity)
        return min(trained, capacity)
    if wanted > trained:
        raise ConfigError(f"max_model_len={wanted} exceeds the {trained} positions the model has; lower it")
    if wanted > capacity:
        raise ConfigError(
            f"max_model_len={wanted} exceeds the {capacity} tokens the KV cache holds; lower it, or raise "
            f"num_kv_blocks or kv_cache_memory"
        )
    return wanted


def _token_budget(config: EngineConfig, max_model_len: int) -> int:
    budget = config.scheduler.max_num_batched_tokens
    if config.scheduler.enable_chunked_prefill:
        return budget or DEFAULT_TOKEN_BUDGET
    if budget is not None and budget < max_model_len:
        raise ConfigError(
            f"max_num_batched_tokens={budget} is less than max_model_len={max_model_len}: without chunked prefill a "
            f"whole prompt must fit one step; raise it, lower max_model_len, or leave enable_chunked_prefill on"
        )
    return budget or max(DEFAULT_TOKEN_BUDGET, max_model_len)


def _swap_blocks(config: EngineConfig, bytes_per_block: int, num_blocks: int) -> int:
    """Host blocks for swapping: what the space holds, and no more than could ever be used."""
    if config.scheduler.preemption_mode != "swap":
        return 0
    return min(int(config.cache.swap_space * 2**30) // bytes_per_block, config.scheduler.max_num_seqs * num_blocks)


def _eos_token_ids(model: Any, context: ModelContext) -> frozenset[int]:
    """End-of-sequence tokens: the generation configuration's, else the tokenizer's."""
    stated = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    if stated is None:
        stated = context.tokenizer.eos_token_id
    if stated is None:
        return frozenset()
    return frozenset([stated] if isinstance(stated, int) else stated)
