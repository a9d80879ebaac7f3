"""Chameleon keeps the contract: `pytest --pyargs corellm_chameleon.contract`."""

from __future__ import annotations

from corellm_chameleon import Chameleon
from corellm_testing import AdapterContract


class TestChameleon(AdapterContract):
    """A VQ-VAE and a Llama with norms of queries and keys; transformers is the reference."""

    adapter = Chameleon
    without_effect = {"crop_size": "refused: the processor writes as many tokens for images of any size"}
    # a turn is text and images as they come, then the sentinel `<END-OF-TURN>`, which is `<reserved08706>`
    # (facebookresearch/chameleon, chameleon/inference/examples/multimodal_input.py and vocab.py); only single turns are
    # published, so further ones follow in the same form
    chat_prompts = (
        "Be brief.<reserved08706>What is this <image>?<reserved08706>A circle<reserved08706>"
        "Which colour?<reserved08706>It is red.<reserved08706><image>And now?<reserved08706>",
        "<image>And now?<reserved08706>",
    )
    same_roles = (("system", "developer", "user", "assistant", "tool"),)  # all turns end with the same token
