"""The name of a plugin in the forms in which it is written. Knows spelling only, not what is installed."""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass

from corellm.errors import InvalidParameterError

PREFIX = "corellm-"
"""What distributions of plugins begin with, by custom."""

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
        """Read a name as somebody typed it: with or without `corellm-`, words parted by dashes, dots or underscores.

        Raises:
            InvalidParameterError: it is none.
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
        """What stands in a checkpoint's `config.json` instead of `like`, the architecture of the plugin copied.

        Args:
            like: e.g. `LlavaForConditionalGeneration`, which becomes `ToyVlForConditionalGeneration`.
            several: of that plugin's; then they stay apart: `ToyVlQwen2VLForConditionalGeneration`.
        """
        kind = re.fullmatch(r"\w+?(For[A-Z]\w*|LMHeadModel)", like)
        return self.camel + (like if several or kind is None else kind[1])


def canonical(distribution: str) -> str:
    """A distribution's name as names compare: without case, with `-`, `_` and `.` alike (PEP 503)."""
    return re.sub(r"[-_.]+", "-", distribution).lower()
