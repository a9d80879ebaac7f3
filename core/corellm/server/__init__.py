"""The HTTP server, compatible with OpenAI's API: `corellm serve MODEL`.

Knows HTTP, limits and clients; everything about models is behind `engine_client.EngineClient`. Only the command line
imports this room, which needs `corellm[serve]`.
"""
