"""Which modules of a decoder keep a state through transformers' Cache, and how wide their input is.

Knows names in code; imports no transformers, so that models without such modules pay nothing.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
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
    """Inside the block, note the width of what each module gets when the decoder runs once; 0 for none or several."""
    widths = dict.fromkeys(mixers, 0)
    calls: Counter[str] = Counter()
    with ExitStack() as hooks:
        for name, module in mixers.items():
            hook = module.register_forward_pre_hook(partial(_note, widths, calls, name), with_kwargs=True)
            hooks.callback(hook.remove)
        yield widths


def _note(
    widths: dict[str, int],
    calls: Counter[str],
    name: str,
    _: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    calls[name] += 1
    given = (*args, *kwargs.values())[:1]
    widths[name] = given[0].shape[-1] if calls[name] == 1 and given and isinstance(given[0], Tensor) else 0
