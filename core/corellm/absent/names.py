"""Arguments of requests, methods and names in scripts written for vLLM that corellm lacks: what to use instead.

Data only. Tests and the page `docs/run/from-vllm.md` read it; arguments of `LLM(...)` are in `engine`.
"""

from __future__ import annotations

from corellm.absent.table import Absent

ONE_DEVICE = "a model runs on one device; start one process per device and divide the prompts"
NO_LORA = "LoRA adapters cannot be served yet; merge the adapter into the checkpoint (peft: merge_and_unload)"
NO_GUIDES = "outputs cannot be held to a schema or grammar yet; state the format in the prompt and check the output"
NO_SLEEP = "leave the `with` block (or call close()), which frees the device, and load the model again"
NO_TRACING = (
    "a server exports traces: corellm serve --otlp-traces-endpoint; here, use RequestOutput.metrics, get_metrics() or "
    "start_profile()"
)
NO_UPDATES = "weights cannot be exchanged from outside; use apply_model(function) to change the model in place"

REQUEST_ARGUMENTS: dict[str, Absent] = {
    "lora_request": Absent((None,), NO_LORA),
    "prompt_adapter_request": Absent((None,), NO_LORA),
    "guided_options_request": Absent((None,), NO_GUIDES),
    "prompt_token_ids": Absent((None,), "give the ids as prompts: generate([1, 2, 3]), generate([[1, 2], [3]])"),
    "tokenization_kwargs": Absent((None, {}), "tokenize yourself, and give the token ids as the prompt"),
    "chat_template_content_format": Absent((None, "auto"), "the format of contents is detected from the template"),
    "prompt_text": Absent((None,), "give the text as the prompt"),
    "trace_headers": Absent((None, {}), NO_TRACING),
    "data_parallel_rank": Absent((None, 0), ONE_DEVICE),
    "reasoning_ended": Absent((None,), "there is no reasoning parser; split the output's text yourself"),
}
"""Arguments of `generate` and `chat`."""

PROMPT_KEYS: dict[str, Absent] = {
    "prompt_embeds": Absent((None,), "prompts are text or token ids; embeddings of items go into multi_modal_data"),
    "encoder_prompt": Absent((None,), "an encoder-decoder's encoder reads the prompt: give it as prompt"),
    "decoder_prompt": Absent((None,), "the adapter gives an encoder-decoder's decoder its first tokens"),
    "token_type_ids": Absent((None,), "give those of an encoder as PoolingParams(token_type_ids=...)"),
}
"""Keys of a prompt given as a dictionary."""

METHODS: dict[str, Absent] = {
    "beam_search": Absent((), "there is no beam search; use SamplingParams(n=...) and take the most likely output"),
    "sleep": Absent((), NO_SLEEP),
    "wake_up": Absent((), NO_SLEEP),
    "is_sleeping": Absent((), NO_SLEEP),
    "collective_rpc": Absent((), "the model is in this process; use apply_model(function)"),
    "update_weights": Absent((), NO_UPDATES),
    "init_weight_transfer_engine": Absent((), NO_UPDATES),
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
    "supported_tasks": Absent((), "use engine.use.tasks"),
    "request_counter": Absent((), "RequestOutput.request_id names a request"),
    "get_world_size": Absent((), ONE_DEVICE),
    "add_request": Absent((), "use engine.add_request (LLM) or generate (AsyncLLM)"),
    "add_lora": Absent((), NO_LORA),
    "remove_lora": Absent((), NO_LORA),
    "list_loras": Absent((), NO_LORA),
    "pin_lora": Absent((), NO_LORA),
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
    "shutdown": Absent((), "use close(), or a `with` block"),
    "shutdown_background_loop": Absent((), "use close(), or a `with` block"),
    "wait_for_requests_to_drain": Absent((), "wait for the generators you iterate over"),
    "scale_elastic_ep": Absent((), ONE_DEVICE),
}
"""Methods and attributes of `LLM` and `AsyncLLM`."""

NAMES: dict[str, Absent] = {
    "EngineArgs": Absent((), "pass its arguments to LLM(...)"),
    "AsyncEngineArgs": Absent((), "pass its arguments to AsyncLLM(...)"),
    "AsyncLLMEngine": Absent((), "use AsyncLLM(model, ...)"),
    "EmbeddingRequestOutput": Absent((), "use PoolingRequestOutput; its outputs are a EmbeddingOutput"),
    "ClassificationRequestOutput": Absent((), "use PoolingRequestOutput; its outputs are a ClassificationOutput"),
    "ScoringRequestOutput": Absent((), "use PoolingRequestOutput; its outputs are a ScoringOutput"),
    "BeamSearchParams": Absent((), "there is no beam search; use SamplingParams(n=...)"),
    "GuidedDecodingParams": Absent((), NO_GUIDES),
    "StructuredOutputsParams": Absent((), NO_GUIDES),
    "LoRARequest": Absent((), NO_LORA),
    "ModelRegistry": Absent((), "models come as plugins: `corellm new-plugin`, or see the entry point corellm.models"),
    "initialize_ray_cluster": Absent((), ONE_DEVICE),
}
"""Names of the package itself."""
