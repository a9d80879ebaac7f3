"""Audio of any length over HTTP: readings of `corellm-speech`, and the formats of what they find.

In reading order: `request_checks` says which fields go together, `readings` runs a reading through the engine,
`replies` writes what was found. How short audio is asked for without times is in `endpoints.audio`.
"""
