"""Arguments of `LLM(...)` in scripts written for vLLM: those that corellm names otherwise, and those that it lacks.

Data only. The server, tests and the page `docs/run/from-vllm.md` read it; other names are in `names`.
"""

from __future__ import annotations

from corellm.known_fields import Absent
from corellm_vllm.absent.names import (
    DRAFTS,
    LOGITS,
    NO_COMPILER,
    NO_CONNECTORS,
    NO_TRACING,
    ONE_DEVICE,
    REASONING,
    SEVERAL_ENGINES,
    SLEEP,
    UPDATES,
)

_NO_QUANTIZATION = "a checkpoint's own config.json says how its weights are quantized"
_NO_OFFLOAD = "weights and KV cache stay on the device; use a smaller model, or preemption_mode='swap' for preempted KV"
_STATES = "recurrent states have the dtype and shape of the model's own code; max_num_seqs says how many are kept"
_QUEUE = "a server bounds its queue (corellm serve --max-queue); here, bound the number of requests you send"
_NO_CLASSES = "the engine's parts cannot be exchanged; write an extension plugin (corellm.extensions)"
_PLUGINS = "the installed plugin decides how the model runs; adapter= chooses between plugins"

RENAMED: dict[str, str] = {
    "override_pooler_config": "pooler_config",
    "num_gpu_blocks_override": "num_kv_blocks",
    "kv_cache_memory_bytes": "kv_cache_memory",
    "max_num_scheduled_tokens": "max_num_batched_tokens",
}
"""Arguments with another name here."""

_EMBEDS, _CLASSIFIES = {"runner": "pooling", "convert": "embed"}, {"runner": "pooling", "convert": "classify"}
TASKS: dict[str | None, dict[str, str]] = {
    None: {},
    "auto": {},
    "generate": {"runner": "generate"},
    "embed": _EMBEDS,
    "embedding": _EMBEDS,
    "classify": _CLASSIFIES,
    "score": _CLASSIFIES,
    "reward": {"runner": "pooling"},
}
"""What the values of `task` are here."""

ENGINE_ARGUMENTS: dict[str, Absent] = {
    # what the model is for
    "model_impl": Absent((None, "auto"), _PLUGINS),
    "served_model_name": Absent((None,), "it names a server's model: corellm serve --served-model-name"),
    "tokens_only": Absent((None, False), "give token ids as prompts, and SamplingParams(detokenize=False)"),
    "diffusion_config": Absent((None,), "diffusion models cannot be served"),
    # devices
    "tensor_parallel_size": Absent((None, 1), ONE_DEVICE),
    "pipeline_parallel_size": Absent((None, 1), ONE_DEVICE),
    "data_parallel_size": Absent((None, 1), SEVERAL_ENGINES),
    "prefill_context_parallel_size": Absent((None, 1), ONE_DEVICE),
    "decode_context_parallel_size": Absent((None, 1), ONE_DEVICE),
    "enable_expert_parallel": Absent((None, False), ONE_DEVICE),
    "enable_eplb": Absent((None, False), ONE_DEVICE),
    "nnodes": Absent((None, 1), ONE_DEVICE),
    "node_rank": Absent((None, 0), ONE_DEVICE),
    "master_addr": Absent((None, "127.0.0.1"), ONE_DEVICE),
    "master_port": Absent((None, 29500, 29501), ONE_DEVICE),
    "data_parallel_rank": Absent((None, 0), SEVERAL_ENGINES),
    "data_parallel_size_local": Absent((None, 1), SEVERAL_ENGINES),
    "data_parallel_address": Absent((None,), SEVERAL_ENGINES),
    "data_parallel_rpc_port": Absent((None,), SEVERAL_ENGINES),
    "data_parallel_backend": Absent((None, "mp"), SEVERAL_ENGINES),
    "eplb_config": Absent((None, {}), ONE_DEVICE),
    "expert_placement_strategy": Absent((None, "linear"), ONE_DEVICE),
    "enable_dbo": Absent((None, False), ONE_DEVICE),
    "device_ids": Absent((None,), "device= chooses one, for example cuda:1"),
    "numa_bind": Absent((None, False), "bind the process itself (numactl, taskset); threads follow its processors"),
    "ray_workers_use_nsight": Absent((None, False), "run the process itself under nsys"),
    "distributed_executor_backend": Absent((None, "uni", "mp"), ONE_DEVICE),
    "worker_use_ray": Absent((None, False), ONE_DEVICE),
    "disable_custom_all_reduce": Absent((None, False, True), ONE_DEVICE),
    "max_parallel_loading_workers": Absent((None,), ONE_DEVICE),
    "mm_encoder_tp_mode": Absent((None, "weights", "data"), ONE_DEVICE),
    "worker_cls": Absent((None, "auto"), _NO_CLASSES),
    "worker_extension_cls": Absent((None, ""), _NO_CLASSES),
    "scheduler_cls": Absent((None,), _NO_CLASSES),
    # weights, tokenizer, configuration
    "allow_deprecated_quantization": Absent((None, False), _NO_QUANTIZATION),
    "quantization_config": Absent((None,), _NO_QUANTIZATION),
    "model_class_overrides": Absent((None, {}), _PLUGINS),
    "model_loader_extra_config": Absent((None, {}), "safetensors are read as they are; there is nothing to set"),
    "ignore_patterns": Absent((None, "original/**/*", ["original/**/*"]), "only files that are needed are fetched"),
    "download_dir": Absent((None,), "set the environment variable HF_HOME, or give the model's directory"),
    "use_tqdm_on_load": Absent((None, True, False), "loading shows no progress bar"),
    "pt_load_map_location": Absent((None, "cpu"), "weights are read from safetensors, without a device of their own"),
    "safetensors_load_strategy": Absent((None, "lazy"), "safetensors are mapped into memory"),
    "hf_token": Absent((None, True), "log in with `hf auth login`, or set the environment variable HF_TOKEN"),
    "hf_config_path": Absent((None,), "put config.json into the model's directory"),
    "config_format": Absent((None, "auto", "hf"), "only the Hugging Face layout is read"),
    "code_revision": Absent((None,), "revision= applies to all files"),
    "tokenizer_revision": Absent((None,), "revision= applies to all files"),
    "tokenizer_mode": Absent((None, "auto", "hf"), "the tokenizer is transformers' fast one where there is one"),
    "skip_tokenizer_init": Absent((None, False), "the tokenizer is always loaded; SamplingParams(detokenize=False)"),
    "tokenizer_pool_size": Absent((None, 0), "texts are tokenized in threads of their own"),
    "rope_scaling": Absent((None, {}), "write it into config.json, or use hf_overrides={'rope_scaling': ...}"),
    "rope_theta": Absent((None,), "write it into config.json, or use hf_overrides={'rope_theta': ...}"),
    "disable_sliding_window": Absent((None, False), "lower max_model_len to the window instead"),
    "override_generation_config": Absent((None, {}), "give these values as SamplingParams"),
    "chat_template": Absent((None,), "give it with the conversation: chat(messages, chat_template=...)"),
    "enable_prompt_embeds": Absent((None, False), "prompts are text or token ids"),
    # memory and KV cache
    "cpu_offload_gb": Absent((None, 0), _NO_OFFLOAD),
    "cpu_offload_params": Absent((None,), _NO_OFFLOAD),
    "offload_backend": Absent((None, "auto"), _NO_OFFLOAD),
    "offload_group_size": Absent((None, 0), _NO_OFFLOAD),
    "offload_num_in_group": Absent((None, 1), _NO_OFFLOAD),
    "offload_prefetch_step": Absent((None, 1), _NO_OFFLOAD),
    "offload_params": Absent((None,), _NO_OFFLOAD),
    "kv_offloading_size": Absent((None,), _NO_OFFLOAD),
    "kv_offloading_backend": Absent((None, "native"), _NO_OFFLOAD),
    "calculate_kv_scales": Absent((None, False), "int8 and fp8 caches have a factor for every token and head"),
    "kv_cache_dtype_skip_layers": Absent((None, []), "kv_cache_dtype applies to all layers"),
    "kv_sharing_fast_prefill": Absent((None, False), "layers that share KV are found at load; prefill runs all layers"),
    "mamba_cache_dtype": Absent((None, "auto"), _STATES),
    "mamba_ssm_cache_dtype": Absent((None, "auto"), _STATES),
    "mamba_block_size": Absent((None,), _STATES),
    "mamba_cache_mode": Absent((None, "none"), _STATES),
    "prefix_caching_hash_algo": Absent((None, "sha256", "sha256_cbor"), "prefixes are always known by their SHA-256"),
    "disable_hybrid_kv_cache_manager": Absent(
        (None, False, True), "layers with a window have fewer blocks by themselves"
    ),
    "kv_transfer_config": Absent((None,), NO_CONNECTORS),
    "kv_events_config": Absent((None,), NO_CONNECTORS),
    "ec_transfer_config": Absent((None,), NO_CONNECTORS),
    "weight_transfer_config": Absent((None,), UPDATES),
    "enable_sleep_mode": Absent((None, False, True), SLEEP),
    # steps
    "compilation_config": Absent((None, 0, {}), NO_COMPILER),
    "optimization_level": Absent((None, 0), NO_COMPILER),
    "performance_mode": Absent((None, "balanced"), "set max_num_seqs and max_num_batched_tokens"),
    "kernel_config": Absent((None, {}), "attention_backend= and fuse_layers= choose kernels"),
    "moe_backend": Absent((None, "auto"), "attention_backend= and fuse_layers= choose kernels"),
    "linear_backend": Absent((None, "auto"), "attention_backend= and fuse_layers= choose kernels"),
    "enable_flashinfer_autotune": Absent((None, True, False), "there are no FlashInfer kernels"),
    "attention_config": Absent((None, {}), "attention_backend= chooses the backend"),
    "cudagraph_capture_sizes": Absent((None,), NO_COMPILER),
    "max_cudagraph_capture_size": Absent((None,), NO_COMPILER),
    "max_seq_len_to_capture": Absent((None, 8192), "CUDA graphs work for sequences of every length"),
    "async_scheduling": Absent(
        (None, True), "steps are launched ahead where they can be; enforce_eager=True turns that off"
    ),
    "disable_async_output_proc": Absent((None, False), "outputs are made in the engine's own thread"),
    "num_scheduler_steps": Absent((None, 1), "the scheduler runs before every step"),
    "num_lookahead_slots": Absent((None, 0), DRAFTS),
    "use_v2_block_manager": Absent((None, True, False), "there is one block manager"),
    "scheduler_delay_factor": Absent((None, 0.0), "a prompt starts when there is room for it"),
    "max_num_partial_prefills": Absent((None, 1), "prompts are split in their order; there is nothing to set"),
    "max_long_partial_prefills": Absent((None, 1), "prompts are split in their order; there is nothing to set"),
    "long_prefill_token_threshold": Absent((None, 0), "lower max_num_batched_tokens instead"),
    "max_num_queued_reqs": Absent((None,), _QUEUE),
    "max_num_queued_tokens": Absent((None,), _QUEUE),
    "scheduler_reserve_full_isl": Absent((None, True, False), "a prompt is admitted with blocks for all its tokens"),
    "watermark": Absent((None, 0), "how many blocks stay free follows from preemptions"),
    "shutdown_timeout": Absent(
        (None, 0), "wait for what is in flight before close(); a server does: corellm serve --shutdown-timeout"
    ),
    "disable_chunked_mm_input": Absent((None, False), "an item's placeholder may be split; its encoder runs once"),
    "disable_cascade_attn": Absent((None, True, False), "there is no cascade attention"),
    "stream_interval": Absent((None, 1), "AsyncLLM hands a slow reader the newest output only"),
    "speculative_model": Absent((None,), DRAFTS),
    "num_speculative_tokens": Absent((None,), DRAFTS),
    "spec_method": Absent((None,), DRAFTS),
    "spec_model": Absent((None,), DRAFTS),
    "spec_tokens": Absent((None,), DRAFTS),
    # items
    "disable_mm_preprocessor_cache": Absent((None, False), "use mm_processor_cache_gb=0"),
    "mm_processor_cache_type": Absent((None, "lru"), "the processor cache is in this process"),
    "mm_shm_cache_max_object_size_mb": Absent((None, 128), "the processor cache is in this process"),
    "mm_encoder_only": Absent((None, False), "a model is always loaded whole"),
    "language_model_only": Absent((None, False), "a model is always loaded whole"),
    "mm_encoder_attn_dtype": Absent((None,), "encoders run in the model's dtype"),
    "mm_processor_device": Absent((None, "auto", "cpu"), "items are processed on the CPU"),
    "mm_hasher_algorithm": Absent((None, "blake3", "sha256"), "items are known by their SHA-256"),
    "renderer_num_workers": Absent((None, 1), "prompts are prepared in threads of their own"),
    "mm_encoder_attn_backend": Absent((None,), "encoders run as transformers runs them"),
    "enable_mm_embeds": Absent(
        (None, True, False),
        "embeddings are always taken, and checked; a server takes them with corellm serve --enable-mm-embeds",
    ),
    "interleave_mm_strings": Absent((None, False), "placeholders always stand where the message's parts stand"),
    "media_io_kwargs": Absent((None, {}), "use mm_processor_kwargs, and max_image_pixels, max_video_frames, ..."),
    "skip_mm_profiling": Absent((None, False), "lower limit_mm_per_prompt or the size of items to need less memory"),
    "video_pruning_rate": Absent((None, 0), "all tokens of a video are kept; lower fps or size (mm_processor_kwargs)"),
    "allowed_local_media_path": Absent(
        (None, ""),
        "what a prompt names is opened: check paths before you pass them; a server opens what is below corellm serve "
        "--allowed-local-media-path",
    ),
    "io_processor_plugin": Absent((None,), "write an extension plugin (corellm.extensions)"),
    # LoRA
    "enable_lora_bias": Absent((None, False), "train adapters without biases"),
    "lora_dtype": Absent((None, "auto"), "adapters have the model's type"),
    "fully_sharded_loras": Absent((None, False), ONE_DEVICE),
    "default_mm_loras": Absent((None, {}), "name the adapter in each request (lora_request)"),
    "lora_target_modules": Absent((None,), "all linear layers of the decoder may have adapters"),
    "enable_tower_connector_lora": Absent((None, False), "train adapters of the decoder's layers alone"),
    "enable_prompt_adapter": Absent((None, False), "use LoRA adapters (enable_lora)"),
    # what comes out
    "guided_decoding_backend": Absent((None, "auto", "guidance", "xgrammar"), "llguidance is the only one"),
    "structured_outputs_config": Absent((None, {}), "llguidance holds outputs to forms, and has no settings"),
    **dict.fromkeys(("reasoning_parser", "reasoning_parser_plugin"), Absent((None, ""), REASONING)),
    "enable_return_routed_experts": Absent((None, False), "outputs do not say which experts were chosen"),
    "logits_processors": Absent((None, []), LOGITS),
    "logits_processor_pattern": Absent((None,), LOGITS),
    "logprobs_mode": Absent((None, "raw_logprobs"), "log-probabilities are those of the raw logits"),
    "max_logprobs": Absent((None, 20, -1), "SamplingParams(logprobs=...) says how many"),
    "disable_log_stats": Absent((None, True, False), "no metrics are logged; get_metrics() always has them"),
    "enable_log_requests": Absent((None, False), "requests are not logged; log them in your own code"),
    "disable_log_requests": Absent((None, True), "requests are not logged; log them in your own code"),
    "kv_cache_metrics": Absent((None, False), "get_metrics() has all there are"),
    "cudagraph_metrics": Absent((None, False), "get_metrics() has all there are"),
    "enable_mfu_metrics": Absent((None, False), "get_metrics() has all there are"),
    "enable_mm_processor_stats": Absent((None, False), "get_metrics() has all there are"),
    "enable_layerwise_nvtx_tracing": Absent((None, False), "use start_profile()"),
    "show_hidden_metrics_for_version": Absent((None,), "get_metrics() has all there are"),
    "otlp_traces_endpoint": Absent((None,), NO_TRACING),
    "collect_detailed_traces": Absent((None, []), NO_TRACING),
    "profiler_config": Absent((None, {}), "start_profile(trace_file) says where the trace goes"),
    "additional_config": Absent((None, {}), "no platform has arguments of its own"),
}
"""Arguments of `LLM`, `AsyncLLM` and `LLMEngine`."""

ENGINE_FLAGS: dict[str, Absent] = {
    **ENGINE_ARGUMENTS,
    **{old: Absent((None,), f"use {new}") for old, new in RENAMED.items()},
    "task": Absent((None, "auto", "generate"), "set runner='pooling', and convert='embed' or convert='classify'"),
}
"""What they all mean where none is renamed: on the command line of a server."""
