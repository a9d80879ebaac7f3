"""The prompt of an encoder-decoder's encoder, as far as the engine plans by it: how many states, and what they are of.

Plain data; knows neither blocks nor tensors.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from corellm.multimodal.inputs import MultiModalFeature


@dataclass(frozen=True, slots=True)
class EncoderPrompt:
    """What the encoder reads; its items are the request's `features`."""

    token_ids: Sequence[int]
    """Placeholders expanded."""
    num_states: int
    """States that the decoder attends to."""
    digest: bytes
    """Of everything that the states depend on, and of the cache salt: the decoder's keys and values depend on it."""

    @property
    def num_positions(self) -> int:
        """What counts against a step's budget: the prompt's tokens, or the states made of them and its items."""
        return max(len(self.token_ids), self.num_states)

    @classmethod
    def of(
        cls, token_ids: Sequence[int], num_states: int, features: Sequence[MultiModalFeature], cache_salt: str | None
    ) -> EncoderPrompt:
        """Return the prompt of these tokens and items."""
        parts = [array("q", token_ids).tobytes(), b"" if cache_salt is None else b"salt" + cache_salt.encode()]
        for feature in features:
            parts += [feature.identifier.encode(), feature.placeholder.offset.to_bytes(8, "little")]
        digest = sha256(num_states.to_bytes(8, "little"))
        for part in parts:  # framed by their lengths, as in `block_hash`
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
        return cls(token_ids, num_states, digest.digest())
