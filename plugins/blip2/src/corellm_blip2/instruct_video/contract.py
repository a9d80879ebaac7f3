"""InstructBLIP with videos keeps the contract: `pytest --pyargs corellm_blip2.instruct_video.contract`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from corellm_blip2.instruct_video import InstructBlipVideo
from corellm_blip2.instruct_video.hf_oracle import hf_process
from corellm_testing import AdapterContract, Continuation, Media, Reference, generate_one


class InstructBlipVideoReference(Reference):
    """Transformers' model and, in a process of its own, processor.

    The text model alone for prompts without a video, which transformers' InstructBLIP does not take.
    """

    ignored_tensors = {"qformer_attention_mask": "no instruction is padded: all of them are read"}

    def process(self, text: str, media: Media, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the tensors of a text and of a video's sample, with those of another instruction if one is given."""
        frames = next((sample(*video) for video in media.get("video", ())), None)
        output = hf_process(self.checkpoint, text, frames)
        if "qformer_text" in kwargs:
            other = hf_process(self.checkpoint, kwargs["qformer_text"], None)
            output |= {name: array for name, array in other.items() if name.startswith("qformer_")}
        return {name: torch.from_numpy(array) for name, array in output.items()}

    def generate(self, text: str, media: Media, kwargs: Mapping[str, Any], max_tokens: int) -> Continuation:
        """Generate with a video, or without one by the text model."""
        inputs = self.process(text, media, kwargs)
        if not media:
            alone = {name: tensor for name, tensor in inputs.items() if not name.startswith("qformer_")}
            return generate_one(self.model.language_model, alone, max_tokens)
        return generate_one(self.model, inputs, max_tokens)


def sample(frames: np.ndarray[Any, Any], known: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """Return the frames that transformers' example for the model takes; of a sample, all."""
    count = len(frames)
    taken = np.arange(count) if "frames_indices" in known else np.arange(0, count, count / 4).astype(int)
    return np.take(frames, taken, axis=0)


class TestInstructBlipVideo(AdapterContract):
    """Llama, as Vicuna is."""

    adapter = InstructBlipVideo
    reference = InstructBlipVideoReference
    processor_kwargs = ({"qformer_text": "Which colour?"},)
    # the published use, an instruction as it is; the model knows no turns: all texts, line by line
    chat_prompts = ("Be brief.\nWhat is this ?\nA circle\nWhich colour?\nIt is red.\nAnd now?", "And now?")
    same_roles = (("system", "developer", "tool", "user", "assistant"),)
