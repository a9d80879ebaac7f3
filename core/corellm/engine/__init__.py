"""The engine: requests, scheduling, blocks and the step loop. Decisions here are plain Python, without torch.

What a caller sends runs as `n` engine requests, one per completion: these are what `Request` means here. In reading
order:

    llm_engine          takes requests, runs one step at a time; `atomic` undoes interrupted calls
    request             one sequence: prompt, output so far, why it ended
    scheduler           what the next step computes; with `admission`, `request_queue`, `policies`, `step_plan`
    block_manager       block tables; `block_pool` counts references, `block_hash` finds equal prefixes
    encoder_plan        which encoders run in a step; `encoder_cache` knows whose outputs the worker has
    input_processor     prompts to tokens and items; with `chat_processor`, `text_tokenizer`, `text_limit`, `bad_words`,
                        `text_pairs`, and `truncation` after it
    output_processor    tokens to outputs; with `output_group`, `detokenizer`, `stop_strings`, `logprobs_decoder`
    locating            from a model's name to its files and plugin, with `recommended_sampling`; then `opening` to
                        tokenizer and hooks, then `loading` (encoder-only models: `text_encoder_loading`) to an engine's
                        parts, of the sizes that `sizing` plans
    async_llm           the engine for asyncio, in a thread of its own; a `stream` per request; prompts are prepared in
                        threads of `preparation_pools`
    maintenance         caches, `metrics` and traces between steps; `at_exit` stops engines when the interpreter exits

torch is imported only where a model is opened and loaded.
"""
