"""Heads on a model's hidden states in torch: EAGLE's, and EAGLE-3's. Their layers are transformers' Llama.

A row is one token and the model's hidden state before it. Knows neither sequences nor where rows come from.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaDecoderLayer,
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
)


class Head(nn.Module):
    """A decoder of few layers, which reads a state beside each token.

    States come and go at fixed addresses, so that captured steps find them.

    Args:
        config: of its layers.
        most_rows: rows of a pass.
        embed: embeddings `[n, width]` of tokens `[n]`.
        dtype, device: of the model.

    Attributes:
        given: `[most_rows, width]`, the state before each token; written before a pass.
        made: `[most_rows, width]`, its own state behind each, which stands for the model's before the next one.
    """

    given: Tensor
    made: Tensor

    def __init__(
        self,
        config: LlamaConfig,
        most_rows: int,
        embed: Callable[[Tensor], Tensor],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__()
        self.embed = embed
        self.rotary_emb = LlamaRotaryEmbedding(config).to(device)
        for name in ("given", "made"):
            rows = torch.zeros(most_rows, config.hidden_size, dtype=dtype, device=device)
            self.register_buffer(name, rows, persistent=False)

    @abstractmethod
    def combined(self, rows: Tensor) -> Tensor:
        """Return the states `[n, width]` of what is read of the model, `[n, several hidden states]`."""

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits of the model's tokens, `[n, vocab]`."""

    @abstractmethod
    def run(self, embeds: Tensor, states: Tensor, around: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Return own states and what logits are made of, `[1, n, width]` each, given embeddings and states."""

    def forward(self, inputs_embeds: Tensor, position_ids: Tensor, paged: Any, use_cache: bool = False) -> Any:
        """Return what logits are made of, as a model's decoder does, and write own states to `made`."""
        states = self.given[None, : inputs_embeds.shape[1]]
        angles = self.rotary_emb(inputs_embeds, position_ids)
        around = {"position_embeddings": angles, "attention_mask": None, "position_ids": position_ids, "paged": paged}
        own, hidden = self.run(inputs_embeds, states, around)
        self.made[: own.shape[1]].copy_(own[0])
        return (hidden,)


class Eagle(Head):
    """EAGLE's head: it guesses the model's next hidden state, of which the model's output layer makes logits.

    Args:
        output: the model's output layer, from `[n, width]` to `[n, vocab]`.
    """

    def __init__(self, config: LlamaConfig, *args: Any, output: Callable[[Tensor], Tensor]) -> None:
        super().__init__(config, *args)
        self._output = output
        with torch.device("meta"):
            self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size)
            self.layers = nn.ModuleList(LlamaDecoderLayer(config, index) for index in range(config.num_hidden_layers))
        self.layers[0].input_layernorm = nn.Identity()

    def combined(self, rows: Tensor) -> Tensor:
        """See `Head`: the model's last hidden state is read as it is."""
        return rows

    def logits(self, hidden: Tensor) -> Tensor:
        """See `Head`."""
        return self._output(hidden)

    def run(self, embeds: Tensor, states: Tensor, around: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """See `Head`."""
        hidden = self.fc(torch.cat([embeds, states], dim=-1))
        for layer in self.layers:
            output = layer(hidden, **around)
            hidden = output[0] if isinstance(output, tuple) else output
        return hidden, hidden


class Eagle3(Head):
    """The head of EAGLE-3: of three layers' hidden states it makes one, and has an output layer over common tokens.

    Args:
        tokens: those of the model that it can say, in the order of its output layer.
        vocab_size: logits of the model.
        model_width: hidden size of the model.
    """

    tokens: Tensor

    def __init__(self, config: LlamaConfig, *args: Any, tokens: Tensor, vocab_size: int, model_width: int) -> None:
        super().__init__(config, *args)
        self._vocab_size = vocab_size
        with torch.device("meta"):
            self.fc = nn.Linear(3 * model_width, config.hidden_size)
            self.midlayer = _Midlayer(config)
            self.norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
            self.lm_head = nn.Linear(config.hidden_size, len(tokens))
        self.register_buffer("tokens", tokens, persistent=False)

    def combined(self, rows: Tensor) -> Tensor:
        """See `Head`."""
        states: Tensor = self.fc(rows)
        return states

    def logits(self, hidden: Tensor) -> Tensor:
        """See `Head`: tokens that it cannot say have minus infinity."""
        own: Tensor = self.lm_head(hidden)
        return own.new_full((len(own), self._vocab_size), -torch.inf).index_copy(1, self.tokens, own)

    def run(self, embeds: Tensor, states: Tensor, around: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """See `Head`."""
        own = self.midlayer(embeds, states, around)
        return own, self.norm(own)


class _Midlayer(nn.Module):
    """A layer of Llama whose attention reads embeddings and states side by side."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.self_attn, self.mlp = LlamaAttention(config, 0), LlamaMLP(config)
        self.input_layernorm, self.hidden_norm, self.post_attention_layernorm = (
            LlamaRMSNorm(config.hidden_size, config.rms_norm_eps) for _ in range(3)
        )
        self._adds_normed = bool(getattr(config, "norm_before_residual", False))

    def forward(self, embeds: Tensor, states: Tensor, around: dict[str, Any]) -> Tensor:
        """Return states behind the layer, `[1, n, width]`."""
        normed = self.hidden_norm(states)
        attended, _ = self.self_attn(hidden_states=torch.cat([self.input_layernorm(embeds), normed], dim=-1), **around)
        total: Tensor = (normed if self._adds_normed else states) + attended
        inner: Tensor = self.mlp(self.post_attention_layernorm(total))
        return total + inner
