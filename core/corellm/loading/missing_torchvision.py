"""What to do where transformers asks for torchvision, which is not installed.

Knows that transformers hides classes that it believes to need torchvision, by a word in their file or by a decorator,
and that those of Pillow's code do not: they can be imported from their module. Knows no model family.
"""

from __future__ import annotations

import importlib
import importlib.util
import re

_PROCESSOR = re.compile(r"\b[A-Z]\w*Processor(?:Pil)?\b")


def way_out(error: BaseException) -> str | None:
    """Return what to do about an error that asks for torchvision, in a line; None for any other, or if it is there."""
    if "torchvision" not in str(error).lower() or importlib.util.find_spec("torchvision") is not None:
        return None
    names = dict.fromkeys(_PROCESSOR.findall(str(error)))
    imports = [f"from {module} import {name}" for name in names if (module := _module_of_hidden(name))]
    asking = ", ".join(names) or "the processor"
    without = f"of classes that do without: {'; '.join(imports)}" if imports else "that does without"
    return (
        f"transformers asks for torchvision, for {asking}; install it, or let the adapter's register_processor give a "
        f"processor {without}"
    )


def _module_of_hidden(name: str) -> str | None:
    """Return where a hidden class of Pillow's code can be imported all the same; None for any other name."""
    import transformers

    stand_in = getattr(transformers, name, None) if name.endswith("Pil") else None
    if not getattr(stand_in, "is_dummy", False):
        return None
    module: str = stand_in.__module__
    try:
        importlib.import_module(module)
    except ImportError:  # it needs torchvision indeed
        return None
    return module
