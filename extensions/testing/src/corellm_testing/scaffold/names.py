"""A plugin's name as distribution, package and class. Knows spelling only, not what is installed."""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass

from corellm.errors import InvalidParameterError

PREFIX = "corellm-"
"""The usual beginning of a plugin's distribution name."""

_MOST_CHARACTERS = 32


@dataclass(frozen=True)
class PluginName:
    """`toy-vl` as a distribution, a package and a class."""

    distribution: str
    """`corellm-toy-vl`."""
    package: str
    """`corellm_toy_vl`."""
    camel: str
    """`ToyVl`; capitals that were given are kept."""

    @classmethod
    def parse(cls, given: str) -> PluginName:
        """Return the name that a user typed: with or without `corellm-`, words separated by `-`, `.` or `_`.

        Raises:
            InvalidParameterError: it is not a valid name.
        """
        bare = given[len(PREFIX) :] if canonical(given).startswith(PREFIX) else given
        words = re.split(r"[-_.]", bare)
        camel = "".join(word[:1].upper() + word[1:] for word in words)
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9]*([-_.][A-Za-z0-9]+)*", bare) or keyword.iskeyword(camel):
            raise InvalidParameterError(
                f"{given!r} is no name for a plugin; take letters, digits and dashes, a letter first, e.g. toyvl or "
                f"toy-vl",
                param="name",
            )
        if len(bare) > _MOST_CHARACTERS:
            raise InvalidParameterError(
                f"{given!r} is too long for a plugin's name; take at most {_MOST_CHARACTERS} characters", param="name"
            )
        distribution = PREFIX + canonical(bare)
        return cls(distribution, distribution.replace("-", "_"), camel)

    def architecture(self, like: str, *, several: bool) -> str:
        """Return the architecture of the new plugin that corresponds to `like`, one of the plugin copied.

        Args:
            like: e.g. `LlavaForConditionalGeneration`, which becomes `ToyVlForConditionalGeneration`.
            several: whether that plugin has several; names then stay distinct: `ToyVlQwen2VLForConditionalGeneration`.
        """
        kind = re.fullmatch(r"\w+?(For[A-Z]\w*|LMHeadModel)", like)
        return self.camel + (like if several or kind is None else kind[1])


def canonical(distribution: str) -> str:
    """Return a distribution's normalized name: lower case, with `-` for `_` and `.` (PEP 503)."""
    return re.sub(r"[-_.]+", "-", distribution).lower()
