"""Florence-2 keeps the contract: `pytest --pyargs corellm_florence2.contract`."""

from __future__ import annotations

from corellm_florence2 import Florence2
from corellm_testing import AdapterContract

_SIZE = "the processor states one number of tokens for every image, that of the tower's size"


class TestFlorence2(AdapterContract):
    """DaViT and BART; transformers is the reference."""

    adapter = Florence2
    without_effect = dict.fromkeys(("do_resize", "size"), _SIZE)
    # the model knows no turns: all texts, line by line
    chat_prompts = ("Be brief.\nWhat is this ?\nA circle\nWhich colour?\nIt is red.\nAnd now?", "And now?")
    same_roles = (("system", "developer", "tool", "user", "assistant"),)
