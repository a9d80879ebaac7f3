"""How one layer takes another's place: which may be touched, what is made of it, and whether that computes the same.

Knows no kind of layer. A layer in another's place is a copy that shares all parameters, of a class that is the
original's, too: whoever looks for that class, or for an attribute of the original, finds it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

logger = logging.getLogger(__name__)

Made = TypeVar("Made", bound=nn.Module)
Result = TypeVar("Result")

TOLERANCES = {torch.float32: 2.0**-16, torch.float16: 2.0**-8, torch.bfloat16: 2.0**-5}
"""How long a row's difference may be, relative to the row, by its type.

Half types: four times the distance of neighbouring numbers, since each of a layer's few roundings to the type, of
either side, costs at most half of one. Float32 is not rounded on the way: sums in another order and the kernels' own
exponentials make some tens of its distances, 2**-23, in rows of a hundred to twenty thousand values.
"""


def is_plain(module: nn.Module, shared: frozenset[int]) -> bool:
    """Whether a module may be taken apart: in inference, nobody hooked in, no parameter among the `shared` ids."""
    hooked = any(
        part.training or part._forward_hooks or part._forward_pre_hooks or "forward" in vars(part)
        for part in module.modules()
    )
    return not hooked and all(not x.requires_grad and id(x) not in shared for x in module.parameters())


def swapped_for(module: nn.Module, kind: type[Made]) -> Made:
    """A copy of a module, with the same parameters and children, that behaves as a `kind`."""
    made: Made = copied(module, _both(kind, type(module)))
    return made


def copied(module: nn.Module, kind: type[Made]) -> Made:
    """A `kind` with a module's parameters, children and attributes; what is set on one is not set on the other."""
    made = kind.__new__(kind)
    state = vars(module).items()
    vars(made).update({name: value.copy() if isinstance(value, dict) else value for name, value in state})
    return made


@cache
def _both(kind: Any, original: type) -> Any:
    return type(f"Fused{original.__name__}", (kind, original), {"__module__": original.__module__})


def has_tensors(module: nn.Module) -> bool:
    """Whether a module has parameters or buffers of its own, besides its children's."""
    return any(x is not None for x in (*module._parameters.values(), *module._buffers.values()))


def linears(module: nn.Module, names: tuple[str, ...]) -> list[nn.Linear] | None:
    """The children of these names, if they are plain linear layers of a type that the kernels compute in."""
    found = [getattr(module, name, None) for name in names]
    plain = [x for x in found if type(x) is nn.Linear and x.weight.dtype in TOLERANCES]
    return plain if len(plain) == len(names) else None


def joined(layers: list[nn.Linear]) -> nn.Linear | None:
    """One linear layer that gives what several give of the same input, side by side; None if only some have biases."""
    biases = [layer.bias.detach() for layer in layers if layer.bias is not None]
    if len({layer.in_features for layer in layers}) > 1 or len(biases) not in (0, len(layers)):
        return None
    width = sum(layer.out_features for layer in layers)
    made = nn.Linear(layers[0].in_features, width, bias=bool(biases), device="meta").eval()
    made.weight = nn.Parameter(torch.cat([layer.weight.detach() for layer in layers]), requires_grad=False)
    if biases:
        made.bias = nn.Parameter(torch.cat(biases), requires_grad=False)
    return made


def draw(like: Tensor, *shape: int, seed: int = 0) -> Tensor:
    """Random numbers around 0, of the type and on the device of `like`; torch's own generators are left alone."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(like.device, like.dtype)


def agree(ours: Any, theirs: Any) -> bool:
    """Whether two results are the same: rows within the tolerance of their type, everything else equal."""
    if isinstance(theirs, (tuple, list)):
        pairs = isinstance(ours, type(theirs)) and len(ours) == len(theirs)
        return pairs and all(agree(x, y) for x, y in zip(ours, theirs, strict=True))
    if not isinstance(theirs, Tensor):
        return bool(ours == theirs)
    if not isinstance(ours, Tensor) or (ours.dtype, ours.shape) != (theirs.dtype, theirs.shape):
        return False
    difference, length = (ours.float() - theirs.float()).norm(dim=-1), theirs.float().norm(dim=-1)
    return bool((difference <= TOLERANCES[theirs.dtype] * length).all())


def outcome(run: Callable[[], Result]) -> Result | None:
    """What a layer gives; None where it cannot be run like this, as happens to those that only look like a kind."""
    try:
        return run()
    except Exception as error:
        level = logging.WARNING if type(error).__module__.startswith("triton.") else logging.DEBUG  # a kernel's own
        logger.log(level, "a layer that was tried out failed: %r", error)
        return None


def owners(model: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """Parent and name of every module that has one parent; by name, so that a module can go when it is replaced."""
    uses: dict[int, list[tuple[nn.Module, str]]] = {}
    for parent in model.modules():
        for name, child in parent._modules.items():
            if child is not None:
                uses.setdefault(id(child), []).append((parent, name))
    return (places[0] for places in uses.values() if len(places) == 1)


def shared_parameters(model: nn.Module) -> frozenset[int]:
    """Ids of parameters that belong to more than one module, such as tied embeddings."""
    seen: set[int] = set()
    shared: set[int] = set()
    for module in model.modules():
        for parameter in module._parameters.values():
            (shared if id(parameter) in seen else seen).add(id(parameter))
    return frozenset(shared)
