"""From prompts to requests, and from tokens to outputs.

Beside the engine's steps: threads of callers run it. In reading order:

    input_processor     prompts to tokens and items; with `chat_processor`, `text_tokenizer`, `text_limit`,
                        `bad_words`, `stated_parts`, and `truncation` or `conversation_limit`
                        after it
    preparation_pools   threads that prepare prompts for asyncio
    output_processor    tokens to outputs; with `output_group`, `detokenizer`, `stop_strings`, `logprobs_decoder`
"""
