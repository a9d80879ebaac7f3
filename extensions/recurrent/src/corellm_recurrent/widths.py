"""How wide the input of modules is that keep a state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn


@contextmanager
def noting_widths(mixers: Mapping[str, nn.Module]) -> Iterator[dict[str, int]]:
    """Inside the block, where the decoder runs once, note the width of what each module gets; 0 if it runs not once.

    Linear layers that do not run in the block, because a module computes with their weights itself, are then marked as
    not to be replaced.
    """
    widths = dict.fromkeys(mixers, 0)
    calls: Counter[nn.Module] = Counter()
    names = {module: name for name, module in mixers.items()}
    linears = [part for module in names for part in module.modules() if isinstance(part, nn.Linear)]

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls[module] += 1
        given = next((value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)), None)
        if module in names:
            widths[names[module]] = given.shape[-1] if given is not None and calls[module] == 1 else 0

    with ExitStack() as hooks:
        for module in (*names, *linears):
            hooks.callback(module.register_forward_pre_hook(note, with_kwargs=True).remove)
        yield widths
    for linear in linears:
        if not calls[linear]:
            setattr(linear, "forward", linear.forward)  # noqa: B010 - its own one, so `plain_linears` leaves it alone
