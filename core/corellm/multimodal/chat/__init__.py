"""From an OpenAI-style conversation to prompt text and media, in order.

`messages` brings messages to one shape, `guarding` keeps text that people write from becoming special tokens,
`rendering` writes the prompt by a chat template, `joining` without one, `continuing` ends it within the last message.
"""

from corellm.multimodal.chat.messages import collect_media

__all__ = ["collect_media"]
