"""The poolers of an encoder: of embeddings, or of classes by the head that its own class has.

What the head pools is found at load: the class's own forward pass on hidden states says. Knows transformers' classes by
their forward pass; knows no requests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from corellm.errors import CheckpointError, ConfigError
from corellm.hookspecs import ModelContext
from corellm.modelling.given_hidden import GivenHidden
from corellm_pooling.building import activation_of, embedding_poolers, padding_of
from corellm_pooling.heads import ClassificationHead
from corellm_pooling.params import PoolerConfig
from corellm_pooling.poolers import DispatchPooler, Pooler, SequencePooler, TokenPooler

_TOKENS = 5
_POOLED: dict[str, Callable[[Tensor], Tensor]] = {
    "CLS": lambda hidden: hidden[:, :1],
    "MEAN": lambda hidden: hidden.mean(1, keepdim=True),
    "LAST": lambda hidden: hidden[:, -1:],
}


class _OwnHead(nn.Module):
    """Turns hidden states `[rows, hidden_size]` into logits `[rows, labels]`: the class's own forward pass from there.

    Args:
        model: its weights outside of the encoder become float32.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        encoder = model.base_model
        for child in (getattr(encoder, "pooler", None), *model.children()):
            if isinstance(child, nn.Module) and child is not encoder:
                child.float()
        self.name, self._run = type(model).__name__, type(model).forward
        self._given = GivenHidden(model, model.base_model_prefix)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits of hidden states `[rows, tokens, hidden_size]`, which may have one for each token."""
        logits: Tensor = self._run(self._given, inputs_embeds=hidden).logits
        return logits

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the logits of hidden states that are pooled, or of tokens."""
        return self.logits(hidden[:, None]).flatten(1)


def build_encoder_pooler(config: PoolerConfig, context: ModelContext, model: Any, width: int) -> DispatchPooler:
    """Return the pooler of an encoder whose hidden states are `width` wide, with the tasks that its class has.

    Raises:
        CheckpointError: its head pools in a way that there is not.
        ConfigError: `pooling_type` is another one than the head's.
    """
    if model.base_model is model:
        return DispatchPooler(embedding_poolers(config, context, width, unstated="MEAN", is_encoder=True))
    own = _OwnHead(model)
    kind, num_labels = _found_pooling(own, width, context.device)
    head = ClassificationHead(own, config, activation_of(config.activation, context.hf_config, num_labels))
    if kind is None:
        return DispatchPooler({"token_classify": TokenPooler(head)})
    if config.sequence_pooling not in (None, kind):
        raise ConfigError(f"pooling_type={config.pooling_type!r}: the head of {type(model).__name__} takes {kind}")
    padding = padding_of(config, context.hf_config) if kind == "LAST" else None
    pooler: Pooler = SequencePooler((kind,), head, padding=padding)
    return DispatchPooler({"classify": pooler} | ({"score": pooler} if num_labels == 1 else {}))


@torch.inference_mode()
def _found_pooling(head: _OwnHead, width: int, device: torch.device) -> tuple[str | None, int]:
    """Return what a head takes, None for every token, and its number of labels."""
    hidden = torch.randn(1, _TOKENS, width, generator=torch.Generator().manual_seed(0)).to(device)
    whole = head.logits(hidden)
    if whole.ndim == 3 and torch.allclose(whole[0], head(hidden[0]), atol=1e-5):
        return None, whole.shape[-1]
    for kind, pooled in _POOLED.items():
        if whole.ndim == 2 and torch.allclose(whole, head.logits(pooled(hidden)), atol=1e-5):
            return kind, whole.shape[-1]
    raise CheckpointError(
        f"the head of {head.name} pools hidden states in a way of its own; run this checkpoint with transformers, or "
        "set convert='embed'"
    )
