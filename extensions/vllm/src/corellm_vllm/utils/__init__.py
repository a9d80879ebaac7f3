"""What scripts use beside the engine: a command line's parser, ids of requests."""

from __future__ import annotations

import argparse
import uuid
from collections.abc import Sequence
from typing import Any

from corellm_vllm.absent.exports import exports


class FlexibleArgumentParser(argparse.ArgumentParser):
    """A parser that takes `--max_model_len` for `--max-model-len`."""

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Parse as the base does, with dashes in the names of options."""
        import sys

        words = list(sys.argv[1:] if args is None else args)
        return super().parse_known_args([_with_dashes(word) for word in words], namespace)


def random_uuid() -> str:
    """Return an id that no other request has."""
    return uuid.uuid4().hex


def _with_dashes(word: str) -> str:
    name, equals, value = word.partition("=")
    return f"{name.replace('_', '-')}{equals}{value}" if name.startswith("--") else word


__all__ = ["FlexibleArgumentParser", "random_uuid"]
__getattr__ = exports(__name__)
