"""From an OpenAI-style conversation to prompt text and media, in order.

`fields` has the tables of what messages may have, `reading` reads messages by them, `messages` normalizes what was
read, `guarding` keeps text from becoming special tokens, `rendering` makes the prompt by a chat template, `joining`
without one, `continuing` ends it within the last message.
"""

from corellm.multimodal.chat.guarding import TEXT_BOUNDARY
from corellm.multimodal.chat.messages import collect_media

__all__ = ["TEXT_BOUNDARY", "collect_media"]
