"""Arguments of requests, methods and names in scripts written for vLLM that corellm lacks: what to use instead.

Data only. Tests and the page `docs/run/from-vllm.md` read it; arguments of `LLM(...)` are in `engine`.
"""

from __future__ import annotations

from corellm.known_fields import Absent

ONE_DEVICE = "a model runs on one device; start one process per device and divide the prompts"
SEVERAL_ENGINES = "several engines are behind corellm serve and corellm batch: --data-parallel-size"
SLEEP = (
    "any model sleeps, with extensions/training: sleep(level) and wake_up(tags); over HTTP with corellm serve "
    "--enable-sleep-mode"
)
NO_TRACING = (
    "a server exports traces: corellm serve --otlp-traces-endpoint; here, use RequestOutput.metrics, get_metrics() or "
    "start_profile()"
)
UPDATES = "weights come by name, or from a directory: update_weights(weights), with extensions/training"
DRAFTS = "drafts are set by speculative_config={'method': 'ngram' or another, ...}, which needs extensions/speculative"
NO_COMPILER = "nothing is compiled; GPUs replay CUDA graphs of decode steps unless enforce_eager=True"
LOGITS = "give functions to SamplingParams(logits_processors=...), or register some by name: register_logits_processors"
REASONING = "a server tells reasoning apart: corellm serve --reasoning-parser; here, split the output's text yourself"
NO_CONNECTORS = "the KV cache is not shared between processes"

REQUEST_ARGUMENTS: dict[str, Absent] = {
    "prompt_adapter_request": Absent((None,), "use LoRA adapters (lora_request)"),
    "guided_options_request": Absent((None,), "give structured_outputs to SamplingParams"),
    "prompt_token_ids": Absent((None,), "give the ids as prompts: generate([1, 2, 3]), generate([[1, 2], [3]])"),
    "tokenization_kwargs": Absent((None, {}), "tokenize yourself, and give the token ids as the prompt"),
    "chat_template_content_format": Absent((None, "auto"), "the format of contents is detected from the template"),
    "prompt_text": Absent((None,), "give the text as the prompt"),
    "trace_headers": Absent((None, {}), NO_TRACING),
    "data_parallel_rank": Absent((None, 0), SEVERAL_ENGINES),
    "reasoning_ended": Absent((None,), REASONING),
}
"""Arguments of `generate` and `chat`."""

POOLED_ARGUMENTS: dict[str, Absent] = {
    **REQUEST_ARGUMENTS,
    "lora_request": Absent((None,), "give the LoRA adapter in each prompt: {'prompt': ..., 'lora_request': ...}"),
}
"""Arguments of `encode`, `embed` and the like."""

PROMPT_KEYS: dict[str, Absent] = {
    "prompt_embeds": Absent((None,), "prompts are text or token ids; embeddings of items go into multi_modal_data"),
    "encoder_prompt": Absent((None,), "an encoder-decoder's encoder reads the prompt: give it as prompt"),
    "decoder_prompt": Absent((None,), "the adapter gives an encoder-decoder's decoder its first tokens"),
    "token_type_ids": Absent((None,), "give those of an encoder as PoolingParams(token_type_ids=...)"),
}
"""Keys of a prompt given as a dictionary."""

SCORE_ARGUMENTS: dict[str, Absent] = {
    "chat_template": Absent((None,), "give template=, a text with {query} and {document}, as they stand in the prompt"),
}
"""Arguments of `score`."""

LOADING_ARGUMENTS: dict[str, Absent] = {
    "start_engine_loop": Absent((True,), "the engine always starts when it is made"),
    "usage_context": Absent((None,), "leave it out: usage is not reported"),
    "stat_loggers": Absent((None, [], {}), "no metrics are logged; use get_metrics()"),
    "enable_multiprocessing": Absent((False, True), "the engine is in this process"),
    "enable_log_requests": Absent((False,), "requests are not logged; log them in your own code"),
    "disable_log_requests": Absent((True,), "requests are not logged; log them in your own code"),
    "disable_log_stats": Absent((False, True), "no metrics are logged; use get_metrics()"),
}
"""Arguments of `from_engine_args`."""

FETCH_ARGUMENTS: dict[str, Absent] = {
    "image_io_kwargs": Absent((None, {}), "convert the image that comes back"),
}
"""Arguments of `fetch_image`."""

RESET_ARGUMENTS: dict[str, Absent] = {
    "reset_running_requests": Absent((False,), "let requests in flight finish, or abort_request() them"),
    "reset_connector": Absent((False,), NO_CONNECTORS),
    "device": Absent((None,), ONE_DEVICE),
}
"""Arguments of `reset_prefix_cache`."""

METHODS: dict[str, Absent] = {
    "collective_rpc": Absent(
        (), "the model is in this process; use update_weights(weights) for its weights, or apply_model(function)"
    ),
    "init_weight_transfer_engine": Absent((), UPDATES),
    "set_tokenizer": Absent((), "choose it when the model is loaded: LLM(model, tokenizer=...)"),
    "enqueue": Absent((), "use AsyncLLM, which takes requests at any time"),
    "enqueue_chat": Absent((), "use AsyncLLM, which takes requests at any time"),
    "wait_for_completion": Absent((), "use AsyncLLM, which takes requests at any time"),
    "preprocess_chat": Absent((), "use engine.input_processor.process_chat(messages)"),
    "model_config": Absent((), "use engine.config.model, engine.max_model_len and engine.context.hf_config"),
    "get_model_config": Absent((), "use engine.config.model, engine.max_model_len and engine.context.hf_config"),
    "vllm_config": Absent((), "use engine.config"),
    "get_vllm_config": Absent((), "use engine.config"),
    "supported_tasks": Absent((), "use engine.use.tasks"),
    "tokenizer": Absent((), "use get_tokenizer()"),
    "request_counter": Absent((), "RequestOutput.request_id names a request"),
    "get_world_size": Absent((), ONE_DEVICE),
    "add_request": Absent((), "use engine.add_request (LLM) or generate (AsyncLLM)"),
    "dead_error": Absent((), "use dead, which is None while the engine serves"),
    "is_stopped": Absent((), "use errored"),
    "get_supported_tasks": Absent((), "use engine.use.tasks"),
    "get_input_preprocessor": Absent((), "use engine.input_processor"),
    "get_tokenizer_group": Absent((), "use get_tokenizer()"),
    "is_paused": Absent((), "send no more requests, and let those in flight finish"),
    "pause_generation": Absent((), "send no more requests, and let those in flight finish"),
    "resume_generation": Absent((), "send no more requests, and let those in flight finish"),
    "is_tracing_enabled": Absent((), NO_TRACING),
    "do_log_stats": Absent((), "no metrics are logged; use get_metrics()"),
    "shutdown_background_loop": Absent((), "use shutdown()"),
    "wait_for_requests_to_drain": Absent((), "wait for the generators you iterate over"),
    "scale_elastic_ep": Absent((), ONE_DEVICE),
}
"""Methods and attributes of `LLM`, `AsyncLLM` and `LLMEngine`."""

POOLING_ARGUMENTS: dict[str, Absent] = {
    "requires_token_ids": Absent((None, False), "outputs always have prompt_token_ids"),
    "returned_token_ids": Absent((None,), "it belongs to the model: LLM(model, pooler_config={...})"),
    "step_tag_id": Absent((None,), "it belongs to the model: LLM(model, pooler_config={...})"),
    "skip_reading_prefix_cache": Absent((None, False), "give the prompt a cache_salt of its own"),
    "late_interaction_params": Absent((None,), "use score(queries, documents, late_interaction=True)"),
    "extra_kwargs": Absent((None, {}), "no pooler here takes any"),
}
"""Arguments of `PoolingParams`."""

NAMES: dict[str, Absent] = {
    "ModelRegistry": Absent((), "models come as plugins: `corellm new-plugin`, or see the entry point corellm.models"),
    "EmbedsPrompt": Absent((), "prompts are text or token ids; embeddings of items go into multi_modal_data"),
    "ExplicitEncoderDecoderPrompt": Absent((), "an encoder-decoder's encoder reads the prompt: give it as prompt"),
    "CompilationConfig": Absent((), NO_COMPILER),
    "CUDAGraphMode": Absent((), NO_COMPILER),
    "KVTransferConfig": Absent((), NO_CONNECTORS),
    "KVEventsConfig": Absent((), NO_CONNECTORS),
    "AttentionConfig": Absent((), "attention_backend= chooses the backend"),
    "SpeculativeConfig": Absent((), DRAFTS),
    "StructuredOutputsConfig": Absent((), "llguidance holds outputs to forms, and has no settings"),
    "ProfilerConfig": Absent((), "start_profile(trace_file) says where the trace goes"),
    "WeightTransferConfig": Absent((), UPDATES),
    "VllmConfig": Absent((), "EngineArgs has all arguments, and engine.config of a loaded LLM their values"),
    "MediaConnector": Absent((), "use fetch_image, or give paths, data: URLs or bytes as items of a prompt"),
    "fetch_audio": Absent((), "give the path, the data: URL or the bytes as the audio of a prompt"),
    "fetch_video": Absent((), "give the path, the data: URL or the bytes as the video of a prompt"),
    "encode_video_base64": Absent((), "give the frames as they are: an array, or a list of images"),
    "encode_video_url": Absent((), "give the frames as they are: an array, or a list of images"),
    "initialize_ray_cluster": Absent(
        (), "corellm serve --replicas starts or joins a cluster: from a checkout, pip install ./extensions/ray"
    ),
}
"""Names to import, of whichever module."""

MODULES: dict[str, Absent] = {
    "attention": Absent((), "backends come as extensions (corellm.extensions), and attention_backend= chooses one"),
    "benchmarks": Absent((), "`corellm bench` loads a server; an engine's own timings are in RequestOutput.metrics"),
    "compilation": Absent((), NO_COMPILER),
    "device_allocator": Absent((), SLEEP),
    "distributed.kv_transfer": Absent((), NO_CONNECTORS),
    "distributed.weight_transfer": Absent((), UPDATES),
    "entrypoints.chat_utils": Absent((), "give the template with the conversation: chat(messages, chat_template=...)"),
    "entrypoints.score_utils": Absent((), "give texts, or prompts with multi_modal_data"),
    "entrypoints.openai": Absent((), "the server is `corellm serve`, of corellm_server"),
    "envs": Absent((), "no environment variable says what an engine does; give arguments to LLM(...)"),
    "executor": Absent((), ONE_DEVICE),
    "logger": Absent((), "use Python's logging"),
    "model_executor": Absent((), "models come as plugins: `corellm new-plugin`, or see the entry point corellm.models"),
    "platforms": Absent((), "ask torch: torch.cuda and torch.version"),
    "plugins": Absent((), "plugins are found by the entry points corellm.models and corellm.extensions"),
    "reasoning": Absent((), REASONING),
    "tokenizers": Absent((), "use get_tokenizer() of a loaded LLM, or transformers.AutoTokenizer"),
    "transformers_utils": Absent((), "use get_tokenizer() of a loaded LLM, or transformers.AutoTokenizer"),
    "usage": Absent((), "leave it out: usage is not reported"),
    "v1.core": Absent((), "write an extension plugin (corellm.extensions)"),
    "v1.executor": Absent((), ONE_DEVICE),
    "v1.sample": Absent((), LOGITS),
    "v1.spec_decode": Absent((), DRAFTS),
    "v1.worker": Absent((), "write an extension plugin (corellm.extensions)"),
    "worker": Absent((), "write an extension plugin (corellm.extensions)"),
}
"""Modules to import, below the package."""
