"""What scripts written for vLLM ask for and corellm lacks: names, values that ask for nothing, what to use instead.

Data only. Tests and the page `docs/run/from-vllm.md` read these tables; those of sampling parameters are beside
`SamplingParams`.
"""

from __future__ import annotations

from corellm.absent import Absent

_ONE_DEVICE = "a model runs on one device; start one process per device and divide the prompts"
_NO_LORA = "LoRA adapters cannot be served yet; merge the adapter into the checkpoint (peft: merge_and_unload)"
_NO_DRAFTS = "there is no speculative decoding yet"
_NO_POOLING = (
    "models for embeddings, classes and scores cannot be served yet; use transformers or sentence-transformers"
)
_NO_QUANTIZATION = "quantized checkpoints cannot be served yet; take the one in bfloat16 or float16"
_NO_GUIDES = "outputs cannot be held to a schema or grammar yet; say the format in the prompt and check the output"
_NO_COMPILER = "nothing is compiled; GPUs replay CUDA graphs of decode steps unless enforce_eager=True"
_NO_OFFLOAD = "weights and KV cache stay on the device; use a smaller model, or preemption_mode='swap' for preempted KV"
_NO_SLEEP = "leave the `with` block (or call close()), which frees the device, and load the model again"
_NO_TRACING = "there is no OpenTelemetry export; use RequestOutput.metrics, get_metrics() or start_profile()"
_NO_CONNECTORS = "the KV cache is not shared between processes"
_NO_CLASSES = "the engine's parts cannot be exchanged; write an extension plugin (corellm.extensions)"
_PLUGINS = "the installed plugin decides how the model runs; adapter= chooses between plugins"
_NO_UPDATES = "weights cannot be exchanged from outside; use apply_model(function) to change the model in place"

ENGINE_ARGUMENTS: dict[str, Absent] = {
    # what the model is for
    "runner": Absent((None, "auto", "generate"), _NO_POOLING),
    "task": Absent((None, "auto", "generate"), _NO_POOLING),
    "convert": Absent((None, "auto", "none"), _NO_POOLING),
    "pooler_config": Absent((None,), _NO_POOLING),
    "override_pooler_config": Absent((None,), _NO_POOLING),
    "model_impl": Absent((None, "auto"), _PLUGINS),
    "served_model_name": Absent((None,), "there is no server yet; name the model in your own code"),
    # devices
    "tensor_parallel_size": Absent((None, 1), _ONE_DEVICE),
    "pipeline_parallel_size": Absent((None, 1), _ONE_DEVICE),
    "data_parallel_size": Absent((None, 1), _ONE_DEVICE),
    "prefill_context_parallel_size": Absent((None, 1), _ONE_DEVICE),
    "decode_context_parallel_size": Absent((None, 1), _ONE_DEVICE),
    "enable_expert_parallel": Absent((None, False), _ONE_DEVICE),
    "enable_eplb": Absent((None, False), _ONE_DEVICE),
    "nnodes": Absent((None, 1), _ONE_DEVICE),
    "distributed_executor_backend": Absent((None, "uni", "mp"), _ONE_DEVICE),
    "worker_use_ray": Absent((None, False), _ONE_DEVICE),
    "disable_custom_all_reduce": Absent((None, False, True), _ONE_DEVICE),
    "max_parallel_loading_workers": Absent((None,), _ONE_DEVICE),
    "mm_encoder_tp_mode": Absent((None, "weights", "data"), _ONE_DEVICE),
    "worker_cls": Absent((None, "auto"), _NO_CLASSES),
    "worker_extension_cls": Absent((None, ""), _NO_CLASSES),
    "scheduler_cls": Absent((None,), _NO_CLASSES),
    # weights, tokenizer, configuration
    "quantization": Absent((None,), _NO_QUANTIZATION),
    "allow_deprecated_quantization": Absent((None, False), _NO_QUANTIZATION),
    "model_loader_extra_config": Absent((None, {}), "safetensors are read as they are; there is nothing to set"),
    "ignore_patterns": Absent((None, "original/**/*", ["original/**/*"]), "only files that are needed are fetched"),
    "download_dir": Absent((None,), "set the environment variable HF_HOME, or give the model's directory"),
    "use_tqdm_on_load": Absent((None, True, False), "loading shows no progress bar"),
    "pt_load_map_location": Absent((None, "cpu"), "weights are read from safetensors, without a device of their own"),
    "safetensors_load_strategy": Absent((None, "lazy"), "safetensors are mapped into memory"),
    "hf_token": Absent((None, True), "log in with `hf auth login`, or set the environment variable HF_TOKEN"),
    "hf_config_path": Absent((None,), "put config.json into the model's directory"),
    "config_format": Absent((None, "auto", "hf"), "only the Hugging Face layout is read"),
    "code_revision": Absent((None,), "revision= counts for all files"),
    "tokenizer_revision": Absent((None,), "revision= counts for all files"),
    "tokenizer_mode": Absent((None, "auto", "hf"), "the tokenizer is transformers' fast one where there is one"),
    "skip_tokenizer_init": Absent((None, False), "the tokenizer is always loaded; SamplingParams(detokenize=False)"),
    "tokenizer_pool_size": Absent((None, 0), "texts are tokenized in threads by themselves"),
    "rope_scaling": Absent((None, {}), "write it into config.json, or use hf_overrides={'rope_scaling': ...}"),
    "rope_theta": Absent((None,), "write it into config.json, or use hf_overrides={'rope_theta': ...}"),
    "disable_sliding_window": Absent((None, False), "lower max_model_len to the window instead"),
    "override_generation_config": Absent((None, {}), "give these values as SamplingParams"),
    "enable_prompt_embeds": Absent((None, False), "prompts are text or token ids"),
    # memory and KV cache
    "cpu_offload_gb": Absent((None, 0), _NO_OFFLOAD),
    "kv_offloading_size": Absent((None,), _NO_OFFLOAD),
    "kv_offloading_backend": Absent((None, "native"), _NO_OFFLOAD),
    "num_gpu_blocks_override": Absent((None,), "use num_kv_blocks"),
    "kv_cache_memory_bytes": Absent((None,), "use kv_cache_memory"),
    "calculate_kv_scales": Absent((None, False), "int8 and fp8 caches have a factor for every token and head"),
    "prefix_caching_hash_algo": Absent((None, "sha256", "sha256_cbor"), "prefixes are always known by their SHA-256"),
    "disable_hybrid_kv_cache_manager": Absent((None, False, True), "there is one kind of KV block"),
    "kv_transfer_config": Absent((None,), _NO_CONNECTORS),
    "kv_events_config": Absent((None,), _NO_CONNECTORS),
    "enable_sleep_mode": Absent((None, False), _NO_SLEEP),
    # steps
    "compilation_config": Absent((None, 0, {}), _NO_COMPILER),
    "optimization_level": Absent((None, 0), _NO_COMPILER),
    "attention_config": Absent((None, {}), "attention_backend= chooses the backend"),
    "cudagraph_capture_sizes": Absent((None,), _NO_COMPILER),
    "max_cudagraph_capture_size": Absent((None,), _NO_COMPILER),
    "max_seq_len_to_capture": Absent((None, 8192), "CUDA graphs count for sequences of every length"),
    "async_scheduling": Absent(
        (None, True), "steps are launched ahead where they can be; enforce_eager=True turns that off"
    ),
    "disable_async_output_proc": Absent((None, False), "outputs are made in the engine's own thread"),
    "num_scheduler_steps": Absent((None, 1), "the scheduler runs before every step"),
    "num_lookahead_slots": Absent((None, 0), _NO_DRAFTS),
    "use_v2_block_manager": Absent((None, True, False), "there is one block manager"),
    "max_num_partial_prefills": Absent((None, 1), "prompts are split in their order; there is nothing to set"),
    "max_long_partial_prefills": Absent((None, 1), "prompts are split in their order; there is nothing to set"),
    "long_prefill_token_threshold": Absent((None, 0), "lower max_num_batched_tokens instead"),
    "disable_chunked_mm_input": Absent((None, False), "an item's placeholder may be split; its encoder runs once"),
    "disable_cascade_attn": Absent((None, True, False), "there is no cascade attention"),
    "stream_interval": Absent((None, 1), "AsyncLLM hands a slow reader the newest output only"),
    "speculative_config": Absent((None,), _NO_DRAFTS),
    "speculative_model": Absent((None,), _NO_DRAFTS),
    "num_speculative_tokens": Absent((None,), _NO_DRAFTS),
    # items
    "disable_mm_preprocessor_cache": Absent((None, False), "use mm_processor_cache_gb=0"),
    "mm_processor_cache_type": Absent((None, "lru"), "the processor cache is in this process"),
    "mm_shm_cache_max_object_size_mb": Absent((None, 128), "the processor cache is in this process"),
    "mm_encoder_only": Absent((None, False), "a model is always loaded whole"),
    "mm_encoder_attn_backend": Absent((None,), "encoders run as transformers runs them"),
    "enable_mm_embeds": Absent((None, True, False), "precomputed embeddings are always taken, and checked"),
    "interleave_mm_strings": Absent((None, False), "placeholders always stand where the message's parts stand"),
    "media_io_kwargs": Absent((None, {}), "use mm_processor_kwargs, and max_image_pixels, max_video_frames, ..."),
    "skip_mm_profiling": Absent((None, False), "lower limit_mm_per_prompt or the size of items to need less memory"),
    "video_pruning_rate": Absent((None, 0), "all tokens of a video are kept; lower fps or size (mm_processor_kwargs)"),
    "allowed_local_media_path": Absent((None, ""), "what a prompt names is opened; check paths before you pass them"),
    "allowed_media_domains": Absent((None, []), "http URLs are not fetched; fetch the file and pass its bytes"),
    "io_processor_plugin": Absent((None,), "write an extension plugin (corellm.extensions)"),
    # LoRA
    "enable_lora": Absent((None, False), _NO_LORA),
    "enable_lora_bias": Absent((None, False), _NO_LORA),
    "max_loras": Absent((None, 1), _NO_LORA),
    "max_lora_rank": Absent((None, 16), _NO_LORA),
    "max_cpu_loras": Absent((None,), _NO_LORA),
    "lora_dtype": Absent((None, "auto"), _NO_LORA),
    "fully_sharded_loras": Absent((None, False), _NO_LORA),
    "default_mm_loras": Absent((None, {}), _NO_LORA),
    "enable_prompt_adapter": Absent((None, False), _NO_LORA),
    # what comes out
    "guided_decoding_backend": Absent((None, "auto", "xgrammar"), _NO_GUIDES),
    "structured_outputs_config": Absent((None, {}), _NO_GUIDES),
    "reasoning_parser": Absent((None, ""), "split the output's text yourself"),
    "logits_processors": Absent((None, []), "use logit_bias, allowed_token_ids or bad_words of SamplingParams"),
    "logits_processor_pattern": Absent((None,), "use logit_bias, allowed_token_ids or bad_words of SamplingParams"),
    "logprobs_mode": Absent((None, "raw_logprobs"), "log-probabilities are those of the raw logits"),
    "max_logprobs": Absent((None, 20, -1), "SamplingParams(logprobs=...) says how many"),
    "disable_log_stats": Absent((None, True, False), "no figures are logged; get_metrics() always has them"),
    "show_hidden_metrics_for_version": Absent((None,), "get_metrics() has all there are"),
    "otlp_traces_endpoint": Absent((None,), _NO_TRACING),
    "collect_detailed_traces": Absent((None, []), _NO_TRACING),
    "profiler_config": Absent((None, {}), "start_profile(trace_file) says where the trace goes"),
    "additional_config": Absent((None, {}), "no platform has arguments of its own"),
}
"""Arguments of `LLM`, `AsyncLLM` and `LLMEngine`."""

REQUEST_ARGUMENTS: dict[str, Absent] = {
    "lora_request": Absent((None,), _NO_LORA),
    "prompt_adapter_request": Absent((None,), _NO_LORA),
    "guided_options_request": Absent((None,), _NO_GUIDES),
    "prompt_token_ids": Absent((None,), "give the ids as prompts: generate([1, 2, 3]), generate([[1, 2], [3]])"),
    "tokenization_kwargs": Absent((None, {}), "tokenize yourself, and give the token ids as the prompt"),
    "chat_template_content_format": Absent((None, "auto"), "how content is rendered is found out from the template"),
    "prompt_text": Absent((None,), "give the text as the prompt"),
    "trace_headers": Absent((None, {}), _NO_TRACING),
    "data_parallel_rank": Absent((None, 0), _ONE_DEVICE),
    "reasoning_ended": Absent((None,), "there is no reasoning parser; split the output's text yourself"),
}
"""Arguments of `generate` and `chat`."""

PROMPT_KEYS: dict[str, Absent] = {
    "prompt_embeds": Absent((None,), "prompts are text or token ids; embeddings of items go into multi_modal_data"),
    "encoder_prompt": Absent((None,), "encoder-decoder models cannot be served yet"),
    "decoder_prompt": Absent((None,), "encoder-decoder models cannot be served yet"),
    "token_type_ids": Absent((None,), "no family takes them"),
}
"""Keys of a prompt given as a dictionary."""

METHODS: dict[str, Absent] = {
    "embed": Absent((), _NO_POOLING),
    "encode": Absent((), _NO_POOLING),
    "classify": Absent((), _NO_POOLING),
    "score": Absent((), _NO_POOLING),
    "reward": Absent((), _NO_POOLING),
    "beam_search": Absent((), "there is no beam search; use SamplingParams(n=...) and take the most likely output"),
    "sleep": Absent((), _NO_SLEEP),
    "wake_up": Absent((), _NO_SLEEP),
    "is_sleeping": Absent((), _NO_SLEEP),
    "collective_rpc": Absent((), "the model is in this process; use apply_model(function)"),
    "update_weights": Absent((), _NO_UPDATES),
    "init_weight_transfer_engine": Absent((), _NO_UPDATES),
    "set_tokenizer": Absent((), "choose it when the model is loaded: LLM(model, tokenizer=...)"),
    "enqueue": Absent((), "use AsyncLLM, which takes requests at any time"),
    "enqueue_chat": Absent((), "use AsyncLLM, which takes requests at any time"),
    "wait_for_completion": Absent((), "use AsyncLLM, which takes requests at any time"),
    "preprocess_chat": Absent((), "use engine.input_processor.process_chat(messages)"),
    "llm_engine": Absent((), "use engine; its configuration is engine.config"),
    "model_config": Absent((), "use engine.config.model, engine.max_model_len and engine.context.hf_config"),
    "get_model_config": Absent((), "use engine.config.model, engine.max_model_len and engine.context.hf_config"),
    "vllm_config": Absent((), "use engine.config"),
    "get_vllm_config": Absent((), "use engine.config"),
    "supported_tasks": Absent((), "every model generates; there is no other task yet"),
    "request_counter": Absent((), "RequestOutput.request_id names a request"),
    "get_world_size": Absent((), _ONE_DEVICE),
    "add_request": Absent((), "use engine.add_request (LLM) or generate (AsyncLLM)"),
    "add_lora": Absent((), _NO_LORA),
    "remove_lora": Absent((), _NO_LORA),
    "list_loras": Absent((), _NO_LORA),
    "pin_lora": Absent((), _NO_LORA),
    "pause_generation": Absent((), "stop asking, and let what is in flight finish"),
    "resume_generation": Absent((), "stop asking, and let what is in flight finish"),
    "is_tracing_enabled": Absent((), _NO_TRACING),
    "do_log_stats": Absent((), "no figures are logged; use get_metrics()"),
    "shutdown": Absent((), "use close(), or a `with` block"),
    "shutdown_background_loop": Absent((), "use close(), or a `with` block"),
    "wait_for_requests_to_drain": Absent((), "wait for the generators you iterate over"),
    "scale_elastic_ep": Absent((), _ONE_DEVICE),
}
"""Methods and attributes of `LLM` and `AsyncLLM`."""

NAMES: dict[str, Absent] = {
    "EngineArgs": Absent((), "pass its arguments to LLM(...)"),
    "AsyncEngineArgs": Absent((), "pass its arguments to AsyncLLM(...)"),
    "AsyncLLMEngine": Absent((), "use AsyncLLM(model, ...)"),
    "PoolingParams": Absent((), _NO_POOLING),
    "PoolingOutput": Absent((), _NO_POOLING),
    "PoolingRequestOutput": Absent((), _NO_POOLING),
    "EmbeddingOutput": Absent((), _NO_POOLING),
    "EmbeddingRequestOutput": Absent((), _NO_POOLING),
    "ClassificationOutput": Absent((), _NO_POOLING),
    "ClassificationRequestOutput": Absent((), _NO_POOLING),
    "ScoringOutput": Absent((), _NO_POOLING),
    "ScoringRequestOutput": Absent((), _NO_POOLING),
    "BeamSearchParams": Absent((), "there is no beam search; use SamplingParams(n=...)"),
    "GuidedDecodingParams": Absent((), _NO_GUIDES),
    "StructuredOutputsParams": Absent((), _NO_GUIDES),
    "LoRARequest": Absent((), _NO_LORA),
    "ModelRegistry": Absent((), "models come as plugins: `corellm new-plugin`, or see the entry point corellm.models"),
    "initialize_ray_cluster": Absent((), _ONE_DEVICE),
}
"""Names of the package itself."""
