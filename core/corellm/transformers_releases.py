"""The releases of transformers that corellm runs on, and how they differ for more than one room.

A difference is told by what a function takes, not by a version. What only one family meets is its plugin's matter.
"""

from __future__ import annotations

import warnings
from functools import cache
from inspect import signature
from typing import TYPE_CHECKING, Any

from corellm.errors import UntestedTransformersWarning

if TYPE_CHECKING:
    from torch import nn

TESTED = ((5, 17, 0), (5, 24, 0))
"""The oldest release that tests of parity run with, and the newest, that all run with."""
_CACHE_ARGUMENTS = ("cache", "cache_params", "past_key_values")
"""How forward passes call transformers' Cache: the first since 5.24, one of the others before."""


def cache_argument(module: nn.Module) -> str | None:
    """Return the name by which modules of a class take transformers' Cache; None if they do not.

    They may still take an older name, with a warning in every step.
    """
    kind: Any = type(module)  # mypy: no class is hashable
    return _cache_argument(kind)


@cache
def _cache_argument(kind: Any) -> str | None:
    accepted = signature(kind.forward).parameters
    return next((name for name in _CACHE_ARGUMENTS if name in accepted), None)


def no_cache(module: nn.Module) -> dict[str, None]:
    """Return the argument that tells a module that there is no Cache; none if it takes no Cache."""
    name = cache_argument(module)
    return {} if name is None else {name: None}


def warn_if_untested() -> None:
    """Warn, once in a process, that the installed transformers is newer or older than all that were tested."""
    import transformers

    _warn_if_untested(transformers.__version__)


@cache
def _warn_if_untested(installed: str) -> None:
    release = tuple(int(part) for part in installed.split(".")[:3] if part.isdecimal())
    if TESTED[0] <= release <= TESTED[1]:
        return
    oldest, newest = (".".join(map(str, version)) for version in TESTED)
    warnings.warn(
        f"corellm was tested with transformers {oldest} to {newest}, and {installed} is installed: models may fail to "
        f"load, or their outputs may differ; if so, pip install transformers=={newest}",
        UntestedTransformersWarning,
        stacklevel=2,
    )
