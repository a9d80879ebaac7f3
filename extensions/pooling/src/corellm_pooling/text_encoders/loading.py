"""Loads an encoder-only text model: its weights, its forward pass, its pooler. There is no cache and no chunk.

To the scheduler each prompt is one block, of which there are as many as prompts in a step.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from corellm.attention.registry import select_backend
from corellm.config import EngineConfig
from corellm.errors import ConfigError
from corellm.hookspecs import LoadConfig, ModelContext
from corellm.loading.checkpoint import default_max_model_len
from corellm.loading.loading import LoadedModel, make_scheduler
from corellm.loading.model_parts import find_quantization, replace_layers
from corellm.loading.opening import OpenedModel, make_input_processor, make_mm_processor
from corellm.loading.sizing import Sizes, sequences_at_once, token_budget
from corellm.loading.weight_key import weight_source
from corellm.modelling.defaults import attention_of, freeze, model_width
from corellm.sampling.sampling_state import SamplingState
from corellm.system.memory import DeviceMemory
from corellm.system.process import usable_cpus
from corellm.worker.kv_cache import KVCache
from corellm_pooling.colbert_files import INLINE_PROJECTION
from corellm_pooling.late_interaction import LateInteraction
from corellm_pooling.params import PoolerConfig
from corellm_pooling.sentence_transformers import read_stated_pooling
from corellm_pooling.settings import Conversion
from corellm_pooling.text_encoders.choice import choose_forward
from corellm_pooling.text_encoders.forward import Batch, positions_before
from corellm_pooling.text_encoders.heads import build_encoder_pooler
from corellm_pooling.text_encoders.recognition import adapter_of_classes, encoder_class
from corellm_pooling.text_encoders.runner import TextEncoderRunner


def load_text_encoder(
    config: EngineConfig, opened: OpenedModel, on_failure: ExitStack, conversion: Conversion
) -> LoadedModel:
    """Load the weights and build the engine's parts; arguments as of the loading of a decoder.

    Raises:
        CheckpointError, ConfigError: what is wrong, and the way out.
    """
    context, hooks = opened.context, opened.hooks
    memory = DeviceMemory(context.device, config.cache.gpu_memory_utilization)
    stated = read_stated_pooling(context.model_path)
    late = None if stated is None else stated.late
    make_quantize = find_quantization(config)  # or refuse it before weights are read
    source = weight_source(config, opened)
    with memory.explaining("the weights", "take a smaller model, or free the device of other processes"):
        model = _load_weights(config, opened, late, conversion)
    longest = None if stated is None else stated.max_seq_length
    max_model_len = context.max_model_len = _max_model_len(config, context, model, longest)
    encode = choose_forward(model.base_model, context.tokenizer, max_model_len)
    hidden, _ = encode(Batch([[0]], [None]))
    pooler = build_encoder_pooler(PoolerConfig.of(config.model.pooler_config), context, model, hidden.shape[-1])
    replace_layers(model, config, context, make_quantize, reads_short_texts=True, source=source)

    executor = ThreadPoolExecutor(max_workers=usable_cpus(), thread_name_prefix="corellm-processor")
    on_failure.callback(executor.shutdown, wait=False, cancel_futures=True)
    config = _without_chunks(config, max_model_len)
    num_seqs = sequences_at_once(config, context)
    sizes = Sizes(num_seqs + 1, 0, max_model_len, num_seqs, token_budget(config, context, max_model_len))
    mm_processor = make_mm_processor(config, opened, executor, max_model_len)
    embedding_size = model_width(model)
    runner = TextEncoderRunner(
        encode,
        pooler,
        hooks,
        model,
        model.base_model,
        KVCache({}, 0, config.cache.block_size, context.dtype, context.device),
        select_backend(context.device, context.dtype, None),
        sees_filling=late is None or late.filling is None or late.filling.is_seen,
        block_size=config.cache.block_size,
        new_sampling=partial(SamplingState, vocab_size=embedding_size, engine_seed=0),  # nothing is sampled
        vocab_size=embedding_size,
        embedding_width=None,
        dtype=context.dtype,
        device=context.device,
    )
    return LoadedModel(
        context=context,
        input_processor=make_input_processor(
            config, opened, mm_processor, embedding_size, embedding_size, max_model_len
        ),
        scheduler=make_scheduler(config, sizes, largest_item=0),
        runner=runner,
        executor=executor,
        eos_token_ids=frozenset(),
        max_model_len=max_model_len,
    )


def _load_weights(
    config: EngineConfig, opened: OpenedModel, late: LateInteraction | None, conversion: Conversion
) -> Any:
    context = opened.context
    is_inline = late is not None and late.is_inline
    if is_inline:  # the checkpoint's own name is of no class of transformers
        context.hf_config.architectures = [encoder_class(context.hf_config).__name__]
    load_config = LoadConfig(
        model_path=context.model_path,
        dtype=context.dtype,
        device=context.device,
        attn_implementation="eager",
        trust_remote_code=context.trust_remote_code,
        load_format="dummy" if config.model.load_format == "dummy" else "auto",
        adapt_class=adapter_of_classes(context.hf_config, conversion, apart=INLINE_PROJECTION if is_inline else None),
    )
    model: Any = freeze(opened.hooks.load_model(load_config=load_config))
    model.base_model.config._attn_implementation = attention_of(model)
    return model


def _max_model_len(config: EngineConfig, context: ModelContext, model: Any, stated: int | None) -> int:
    """Return the longest prompt: the configured one, else that of sentence-transformers, else as many as positions.

    Raises:
        ConfigError: the model has fewer positions.
    """
    positions = default_max_model_len(context.hf_config) - positions_before(model.base_model)
    wanted = config.model.max_model_len
    if wanted is not None and wanted > positions:
        raise ConfigError(f"max_model_len={wanted} exceeds the {positions} positions the model has; lower it")
    known = stated or context.tokenizer.model_max_length
    return wanted or min(positions, known)


def _without_chunks(config: EngineConfig, max_model_len: int) -> EngineConfig:
    """Return the configuration for prompts that run whole, each in one block."""
    return replace(
        config,
        cache=replace(config.cache, block_size=max_model_len, enable_prefix_caching=False),
        scheduler=replace(config.scheduler, enable_chunked_prefill=False, preemption_mode="recompute"),
    )
