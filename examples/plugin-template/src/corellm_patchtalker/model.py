"""The model: one linear layer for patches beside transformers' Llama. Knows no image and no prompt.

Its text decoder must be transformers' modelling code or built like it: corellm sets its attention function, which reads
and writes the paged KV cache.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from corellm.errors import CheckpointError
from corellm.hookspecs import LoadConfig
from torch import Tensor, nn
from transformers import LlamaForCausalLM

if TYPE_CHECKING:
    from corellm_patchtalker.config import PatchTalkerConfig


class PatchTalkerForCausalLM(nn.Module):
    """Projection and decoder, named as in the checkpoint's weights.

    corellm's default hooks find the parts by the three methods, so the adapter need not implement hooks for them.
    """

    def __init__(self, config: PatchTalkerConfig) -> None:
        super().__init__()
        self.projection = nn.Linear(config.patch_values, config.text_config.hidden_size)
        self.language_model = LlamaForCausalLM(config.text_config)
        self.generation_config = self.language_model.generation_config  # has the tokens that end a sequence

    def get_decoder(self) -> nn.Module:
        """The decoder without its output layer."""
        decoder: nn.Module = self.language_model.model
        return decoder

    def get_input_embeddings(self) -> nn.Module:
        """Return the embedding table of text tokens."""
        embeddings: nn.Module = self.language_model.model.embed_tokens
        return embeddings

    def get_output_embeddings(self) -> nn.Module:
        """Hidden states to logits."""
        head: nn.Module = self.language_model.lm_head
        return head


def load_model(config: PatchTalkerConfig, load_config: LoadConfig) -> PatchTalkerForCausalLM:
    """Make the model and load its weights; with `load_format="dummy"` they are random and no file is read.

    Raises:
        CheckpointError: a file is broken, or a weight is missing, misshapen or has no place.
    """
    if load_config.load_format == "dummy":
        random_model = PatchTalkerForCausalLM(config).to(load_config.device, load_config.dtype).eval()
        random_model.language_model.model.config._attn_implementation = load_config.attn_implementation
        return random_model
    with torch.device("meta"):  # takes no memory; the weights come from the files
        model = PatchTalkerForCausalLM(config)
    decoder = model.language_model.model
    decoder.rotary_emb = type(decoder.rotary_emb)(config.text_config)  # its frequencies are computed, not loaded
    weights = {name: tensor.to(load_config.dtype) for name, tensor in _read(load_config.model_path).items()}
    try:
        model.load_state_dict(weights, assign=True)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{load_config.model_path}: the weights do not fit the model: {reason}") from error
    decoder.config._attn_implementation = load_config.attn_implementation
    return model.to(load_config.device).eval()


def _read(path: Path) -> dict[str, Tensor]:
    """Return the weights of all safetensors files; pickles can run code and are not read."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    weights: dict[str, Tensor] = {}
    for file in sorted(path.glob("*.safetensors")):
        try:
            weights |= load_file(file)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{file}: the weights cannot be read: {error}") from error
    if not weights:
        raise CheckpointError(f"{path} has no weights (*.safetensors)")
    return weights
