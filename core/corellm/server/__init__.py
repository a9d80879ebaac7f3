"""The OpenAI-compatible server: HTTP in front, the engine in a process of its own, media fetched from the web."""
