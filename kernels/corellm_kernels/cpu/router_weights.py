"""Weights of what chooses experts: each row's product with one has its sums in one order, in models' own code.

Knows that such a module is beside experts, and has a row of its weight for each; knows not what becomes of products.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from corellm_kernels.cpu.experts import PackedExperts
from corellm_kernels.cpu.linear import PackedLinear
from corellm_kernels.cpu.packing import pack

_DTYPES = (torch.float32, torch.bfloat16)
_CASTS = (Tensor.float, Tensor.to, Tensor.type)


class RouterWeight(nn.Parameter):
    """A weight whose products, `functional.linear`, are those of a packed one."""

    _packed: dict[torch.dtype, PackedLinear]
    """Packed forms by type, each made at the first product in that type."""

    def __new__(
        cls, weight: Tensor, requires_grad: bool = False, *, packed: dict[torch.dtype, PackedLinear] | None = None
    ) -> Self:
        """Return a weight `[num_experts, width]` with the values of `weight`, which may be packed already.

        It needs no gradients, whatever a copy asks for.
        """
        made = torch.Tensor._make_subclass(cls, weight.detach(), False)
        made._packed = {} if packed is None else packed
        return made

    def with_values(self, values: Tensor) -> RouterWeight:
        """Return another weight."""
        return RouterWeight(values)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one of torch's functions: products in the kernels, and what writes values, which are packed anew."""
        kwargs = kwargs or {}
        if function is functional.linear:
            return _product(*args, **kwargs)
        with torch._C.DisableTorchFunctionSubclass():
            output = function(*args, **kwargs)
            if function in _CASTS and isinstance(args[0], RouterWeight) and getattr(output, "dtype", None) in _DTYPES:
                return RouterWeight(output, packed=args[0]._packed)  # not the name that `type()` returns
            if function is Tensor.copy_ and isinstance(output, RouterWeight):
                output._pack_again()
            return output

    def _times(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        if self.dtype not in self._packed:
            self._packed[self.dtype] = _packed(self)
        product = self._packed[self.dtype]
        return product(x, None if bias is None else bias.repeat(*x.shape[:-1], 1))  # type: ignore[no-any-return]

    def _pack_again(self) -> None:
        """Pack the values anew, to where they were."""
        for dtype, packed in self._packed.items():
            for name, tensor in vars(_packed(self.to(dtype))).items():
                if isinstance(tensor, Tensor):
                    getattr(packed, name).copy_(tensor)


def _product(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return what `functional.linear` does, whose arguments have these names."""
    if isinstance(weight, RouterWeight):
        return weight._times(input, bias)
    with torch._C.DisableTorchFunctionSubclass():
        return functional.linear(input, weight, bias)


def _packed(weight: Tensor) -> PackedLinear:
    linear = nn.Linear(weight.shape[1], len(weight), bias=False, device="meta")
    linear.weight = nn.Parameter(weight.detach().as_subclass(Tensor), requires_grad=False)
    return PackedLinear(linear, pack=partial(pack, empty=_memory))


def _memory(count: int, dtype: torch.dtype) -> Tensor:
    """Return memory of torch's: a huge page is larger than most such weights, and adapters make one in each step."""
    return torch.empty(count, dtype=dtype)


def pack_routers(model: nn.Module) -> int:
    """Replace the weights of modules beside packed experts that choose these; return how many."""
    count = 0
    for parent in list(model.modules()):
        numbers = {child.num_experts for child in parent.children() if isinstance(child, PackedExperts)}
        for router in parent.children() if numbers else ():
            weight = router._parameters.get("weight")
            if weight is None or weight.dim() != 2 or len(weight) not in numbers or weight.dtype not in _DTYPES:
                continue
            router.register_parameter("weight", RouterWeight(weight))
            count += 1
    return count
