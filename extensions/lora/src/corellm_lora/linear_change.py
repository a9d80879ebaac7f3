"""What an adapter changes of a linear layer beside factors: its weight, biases, DoRA's magnitudes, rows of tokens.

Knows one layer and tensors; knows neither slots nor whose rows are whose.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from corellm_lora.adapter_files import Values
from corellm_lora.changes import OWN

Base = Callable[[Tensor], Tensor]
"""Function from inputs `[num_rows, in_features]` to the outputs of a layer without an adapter."""
_AT_ONCE = 256
"""Rows at once, where a layer's weight is found by what it makes of rows."""
_LARGE = 2.0**12
"""What such rows are multiplied by, so that a bias is small beside their products."""


@dataclass
class LinearChange:
    """A change of one layer."""

    whole: nn.Module | None = None
    """The layer with the adapter's own weight."""
    factor: Tensor | None = None
    """`[out_features]`, float32: outputs are multiplied by it."""
    summand: Tensor | None = None
    """`[out_features]`, float32: is added to outputs."""
    columns: Tensor | None = None
    """Outputs that have an own weight."""
    partly: nn.Module | None = None
    """A layer for these."""

    def __call__(self, x: Tensor, output: Tensor) -> None:
        """Change outputs `[num_rows, out_features]` in place; factors of low rank are added later."""
        if self.whole is not None:
            output.copy_(self.whole(x))
        if self.partly is not None and self.columns is not None:
            output[:, self.columns] = self.partly(x)
        if self.summand is not None:
            factor = 1.0 if self.factor is None else self.factor
            output.copy_(output.float() * factor + self.summand)


class LinearChanges:
    """Makes the changes of one layer.

    Args:
        base: of the layer.
        in_features: its inputs.
        dtype, device: of the model.
        served: returns a layer as the model's own are computed.
    """

    def __init__(
        self,
        base: Base,
        in_features: int,
        dtype: torch.dtype,
        device: torch.device,
        served: Callable[[nn.Linear], nn.Module],
    ) -> None:
        self._base, self._in_features, self._dtype, self._device = base, in_features, dtype, device
        self._served = served
        self._squares: Tensor | None = None

    @torch.inference_mode()
    def change(self, values: Values) -> LinearChange | None:
        """Return what an adapter changes beside its factors; None if that is nothing.

        With magnitudes, its second factor has to be multiplied by the change's `factor`, too.
        """
        tensors = {part: tensor.to(self._device) for part, tensor in values.tensors.items() if part not in ("a", "b")}
        if not tensors:
            return None
        weight, own_bias, bias = tensors.get(f"{OWN}weight"), tensors.get(f"{OWN}bias"), self._bias()
        new_bias = bias if own_bias is None else own_bias.float()
        made = LinearChange()
        if weight is not None:
            made.whole = self._layer(weight, new_bias)
            bias = new_bias
        elif own_bias is not None:
            made.summand = new_bias - bias
        if "b_bias" in tensors:
            made.summand = tensors["b_bias"].float() * values.scale
            made.summand = made.summand + new_bias - bias
        if "magnitude" in tensors:
            made.factor = tensors["magnitude"].float() / self._norms(values, weight)
            made.summand = new_bias - bias * made.factor
        if "tokens" in tensors:
            made.columns = torch.tensor(values.token_ids, device=self._device)
            made.partly = self._layer(tensors["tokens"], None)
        return made

    def forget_base(self) -> None:
        """Forget the norms of the layer's weight, which has changed."""
        self._squares = None

    def _layer(self, weight: Tensor, bias: Tensor | None) -> nn.Module:
        linear = nn.Linear(weight.shape[1], len(weight), bias=bias is not None, device="meta").eval()
        linear.weight = nn.Parameter(weight.to(self._dtype).contiguous(), requires_grad=False)
        if bias is not None:
            linear.bias = nn.Parameter(bias.to(self._dtype), requires_grad=False)
        return self._served(linear)

    def _bias(self) -> Tensor:
        """Return the layer's bias, `[out_features]` in float32."""
        return self._base(torch.zeros(1, self._in_features, dtype=self._dtype, device=self._device))[0].float()

    def _products(self, rows: Tensor) -> Tensor:
        """Return the products of rows with the layer's weight, without its bias, in float32."""
        return (self._base((rows * _LARGE).to(self._dtype)).float() - self._bias()) / _LARGE

    def _norms(self, values: Values, weight: Tensor | None) -> Tensor:
        """Return the norm of each row of the weight and the product of the factors together."""
        a, b = (values.tensors[part].to(self._device).float() for part in ("a", "b"))
        b = b * values.scale
        if weight is None:
            squares, products = self._own_squares(), self._products(a).t()
        else:
            squares, products = weight.float().square().sum(1), weight.float() @ a.t()
        total = squares + 2 * (products * b).sum(1) + ((b @ (a @ a.t())) * b).sum(1)
        return total.clamp(min=0).sqrt()

    def _own_squares(self) -> Tensor:
        """Return the squared norm of each row of the layer's weight, in whatever form it is kept: as it computes.

        It takes as long as that layer takes for a prompt of `in_features` tokens, once.
        """
        if self._squares is None:
            units = torch.eye(self._in_features, device=self._device)
            parts = [self._products(rows).square().sum(0) for rows in torch.split(units, _AT_ONCE)]
            self._squares = torch.stack(parts).sum(0)
        return self._squares
