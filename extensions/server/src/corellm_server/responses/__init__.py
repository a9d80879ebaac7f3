"""Outputs of the engine as responses: JSON in the form of the types of OpenAI and Anthropic, which tests compare.

Plain dicts, as a stream makes one for every token. Knows neither requests nor the engine. In reading order: `chat`,
`model_response` (of `/v1/responses`), `message` (of `/v1/messages`), `completions` and `audio`, each whole or as
events; they share `usage` and `logprobs`. `events` sends a stream. `pooling` makes those of models that pool.
"""
