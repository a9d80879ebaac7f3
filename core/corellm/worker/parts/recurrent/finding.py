"""Which modules of a decoder keep a state through transformers' Cache, and how wide their input is.

Knows names in code; imports no transformers, so that models without such modules pay nothing.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

_UPDATES = frozenset({"update_conv_state", "update_recurrent_state"})
"""How a module hands its new state to transformers' Cache."""


def find_mixers(decoder: nn.Module) -> dict[str, nn.Module]:
    """Return the modules of a decoder that keep a state, by name."""
    classes = {type(module) for module in decoder.modules()}
    keeping = {cls for cls in classes if _keeps_state(cls)}
    return {name: module for name, module in decoder.named_modules() if type(module) in keeping}


def _keeps_state(cls: type[nn.Module]) -> bool:
    own = cls.__mro__[: cls.__mro__.index(nn.Module)]
    functions = (inspect.unwrap(value) for base in own for value in vars(base).values() if callable(value))
    return any(_UPDATES & set(code.co_names) for f in functions if (code := getattr(f, "__code__", None)) is not None)


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
