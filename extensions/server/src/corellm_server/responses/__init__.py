"""Outputs of the engine as responses: JSON in the form of OpenAI's types, which tests hold them against.

Plain dicts, as a stream makes one for every token. Knows neither requests nor the engine. In reading order: `chat`,
`model_response` (of `/v1/responses`), `completions` and `audio`, each whole or as events; they share `usage` and
`logprobs`. `events` sends a stream. `pooling` makes those of models that pool.
"""
