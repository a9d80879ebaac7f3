"""What transformers generates, to compare with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def greedy(model: Any, inputs: Mapping[str, Tensor]) -> tuple[list[int], Tensor]:
    """Tokens and log-probabilities of transformers in float32."""
    with torch.inference_mode():
        output = model.generate(
            **inputs, max_new_tokens=6, do_sample=False, return_dict_in_generate=True, output_scores=True,
            eos_token_id=None,
        )  # fmt: skip
    tokens = output.sequences[0, inputs["input_ids"].shape[1] :].tolist()
    return tokens, torch.stack([scores[0].log_softmax(-1) for scores in output.scores])
