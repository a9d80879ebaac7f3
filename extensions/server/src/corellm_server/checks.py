"""Checks of options, whose errors name the option; secrets are never shown."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corellm.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def make_tuples(options: DataclassInstance) -> None:
    """Make tuples of collections; a single string is one value."""
    for option in fields(options):
        if option.type != "Collection[str]":
            continue
        given: Any = getattr(options, option.name)
        values = (given,) if isinstance(given, str) else tuple(given or ())
        if not all(isinstance(value, str) and value for value in values):
            raise ConfigError(f"{option.name} must be a list of strings")  # may be a key: its value is not shown
        object.__setattr__(options, option.name, values)


def keys_in(name: str, path: str) -> list[str]:
    """The API keys in a file, one a line, without comments.

    Raises:
        ConfigError: it cannot be read, or has none; what it has is not shown.
    """
    try:
        lines = [line.strip() for line in Path(path).read_text(encoding="utf-8").splitlines()]
    except OSError as error:
        raise ConfigError(f"{name}: {path!r:.200}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ConfigError(f"{name}: {path!r:.200} is not text") from None
    found = [line for line in lines if line and not line.startswith("#")]
    if not found:
        raise ConfigError(f"{name}: there is no key in {path!r:.200}; leave it out for a server that all may use")
    return found


def check_number(name: str, value: Any, low: float, high: float, *, whole: bool = False) -> None:
    """Check that an option is a number in a range.

    Raises:
        ConfigError: it is not.
    """
    wanted = int if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, wanted) or not low <= value <= high:
        kind = "an integer" if whole else "a number"
        raise ConfigError(f"{name} must be {kind} from {low:.15g} to {high:.15g}, got {value!r:.100}")
