"""Request bodies: which fields there are, which of OpenAI's are ignored, which are refused. Types, not ranges.

In reading order: `body` is what all share, `sampling` what those that generate share; then one file per group of URLs,
as in `endpoints`. `items` turns the items of `responses` into messages of `chat`; `messages` is Anthropic's API.
"""
