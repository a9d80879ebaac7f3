"""Replacing one layer by another: which may be replaced, how it is copied, whether both compute the same.

Knows no kind of layer. A replacement is a copy that shares all parameters. Its class derives from the original's:
`isinstance` and the original's attributes work.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import accumulate
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from corellm.plain_linears import JoinedOutputs
from corellm_kernels.grouped_linear import GroupedLinear, joined_groups

logger = logging.getLogger(__name__)

Linear = nn.Linear | GroupedLinear
"""Layers whose outputs can be joined."""
_LINEARS = (nn.Linear, GroupedLinear)
"""Not those of derived types, which may compute otherwise."""
Made = TypeVar("Made", bound=nn.Module)
Result = TypeVar("Result")

TOLERANCES = {torch.float32: 2.0**-16, torch.float16: 2.0**-8, torch.bfloat16: 2.0**-5}
"""Largest norm of a row's difference, relative to the norm of the row, by dtype.

Half types: four times the distance of neighbouring numbers, since each of a layer's few roundings, on either side,
costs at most half of one. In float32, sums in another order and the kernels' own exponentials differ by some tens of
its distances, 2**-23, in rows of a hundred to twenty thousand values.
"""


def is_plain(module: nn.Module, shared: frozenset[int]) -> bool:
    """Whether a module may be replaced: it is in inference mode, without hooks, with no parameter in `shared`."""
    if module.training or module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module):
        return False
    own = (x for x in module._parameters.values() if x is not None)
    children = (child for child in module._modules.values() if child is not None)
    return all(not x.requires_grad and id(x) not in shared for x in own) and all(
        is_plain(child, shared) for child in children
    )


def swapped_for(module: nn.Module, kind: type[Made]) -> Made:
    """Return a copy of a module with the same parameters and children, of a class derived from `kind` and its own."""
    made: Made = copied(module, derived(kind, type(module)))
    return made


def copied(module: nn.Module, kind: type[Made]) -> Made:
    """Return a `kind` with a module's parameters, children and attributes; later assignments affect only one."""
    made = kind.__new__(kind)
    state = vars(module).items()
    vars(made).update({name: value.copy() if isinstance(value, dict) else value for name, value in state})
    return made


@cache
def derived(kind: Any, original: type) -> Any:
    """Return a class derived from `kind`, then from a layer's original class."""
    return type(f"Fused{original.__name__}", (kind, original), {"__module__": original.__module__})


def has_tensors(module: nn.Module) -> bool:
    """Whether a module has parameters or buffers of its own, besides its children's."""
    return any(x is not None for x in (*module._parameters.values(), *module._buffers.values()))


def linears(module: nn.Module, names: tuple[str, ...]) -> list[Linear] | None:
    """Return the children of these names; None unless all are plain linear layers of a dtype the kernels support."""
    found = [getattr(module, name, None) for name in names]
    plain = [x for x in found if isinstance(x, Linear) and type(x) in _LINEARS and x.weight.dtype in TOLERANCES]
    return plain if len(plain) == len(names) else None


def joined(layers: Sequence[Linear], join: Callable[[Sequence[nn.Linear]], nn.Module]) -> nn.Module | None:
    """Return one layer with the outputs of several side by side.

    None if they have other inputs, only some biases, or only some weights in groups, or other groups.

    Args:
        layers: linear ones.
        join: makes the layer of those whose weights are in no groups.
    """
    plain = [layer for layer in layers if isinstance(layer, nn.Linear)]
    if not plain:
        return joined_groups([layer for layer in layers if isinstance(layer, GroupedLinear)])
    num_biases = sum(layer.bias is not None for layer in plain)
    if len(plain) < len(layers) or len({x.in_features for x in plain}) > 1 or num_biases not in (0, len(plain)):
        return None
    return join(plain)


def concatenated(layers: Sequence[nn.Linear]) -> nn.Linear:
    """Return a linear layer with the weights of several, one below another."""
    biases = [layer.bias.detach() for layer in layers if layer.bias is not None]
    width = sum(layer.out_features for layer in layers)
    made = nn.Linear(layers[0].in_features, width, bias=bool(biases), device="meta").eval()
    made.weight = nn.Parameter(torch.cat([layer.weight.detach() for layer in layers]), requires_grad=False)
    if biases:
        made.bias = nn.Parameter(torch.cat(biases), requires_grad=False)
    return made


def joined_places(names: Sequence[str], layers: Sequence[Linear], child: str) -> dict[str, JoinedOutputs]:
    """Return where the outputs of layers of these names are in those of `joined`, a child of that name."""
    ends = list(accumulate(layer.out_features for layer in layers))
    return {
        name: JoinedOutputs(child, slice(end - layer.out_features, end))
        for name, layer, end in zip(names, layers, ends, strict=True)
    }


def draw(like: Tensor, *shape: int, seed: int = 0) -> Tensor:
    """Return random numbers around 0, like `like` in dtype and device, without touching torch's global generators."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(like.device, like.dtype)


def agree(ours: Any, theirs: Any) -> bool:
    """Whether two results agree: rows within the tolerance of their dtype, everything else equal."""
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
    """Return the result of `run`; None if it raises, as layers of another kind may."""
    try:
        return run()
    except Exception as error:
        level = logging.WARNING if type(error).__module__.startswith("triton.") else logging.DEBUG  # a kernel failed
        logger.log(level, "a layer that was tried failed: %r", error)
        return None


def owners(model: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """Yield parent and name of every module with one parent; holds no module, so that a replaced one is freed."""
    uses: dict[int, list[tuple[nn.Module, str]]] = {}
    for parent in model.modules():
        for name, child in parent._modules.items():
            if child is not None:
                uses.setdefault(id(child), []).append((parent, name))
    return (places[0] for places in uses.values() if len(places) == 1)


def shared_parameters(model: nn.Module) -> frozenset[int]:
    """Return the ids of parameters of more than one module, such as tied embeddings."""
    seen: set[int] = set()
    shared: set[int] = set()
    for module in model.modules():
        for parameter in module._parameters.values():
            (shared if id(parameter) in seen else seen).add(id(parameter))
    return frozenset(shared)
