"""Uses every installed plugin: makes its tiny checkpoint, loads it, and generates from an item of each modality.

A program for an environment without the tests. Prints a JSON object: for each architecture its distribution, the file
of its adapter, and the tokens or the error.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def use(entry: Any, path: Path) -> list[int]:
    """Make the tiny checkpoint of an adapter, load it, and return its output tokens."""
    from corellm import LLM, SamplingParams

    make = importlib.import_module(f"{entry.entry_point.module}.tiny").make_tiny_checkpoint
    which = {"architecture": entry.architecture} if "architecture" in inspect.signature(make).parameters else {}
    make(path, **which)
    noise = np.random.default_rng(0).integers(0, 256, (4, 60, 80, 3), dtype=np.uint8)
    media = {
        "image": Image.fromarray(noise[0]),
        "video": (noise, {"fps": 4}),
        "audio": (np.linspace(-0.5, 0.5, 8000, dtype=np.float32), 16_000),
    }
    with LLM(str(path), adapter=entry.distribution) as llm:
        content = [
            {"type": modality, modality: media[modality]} for modality in llm.engine.input_processor.mm_processor.limits
        ]
        message = {"role": "user", "content": [*content, {"type": "text", "text": "What is this?"}]}
        (output,) = llm.chat([message], SamplingParams(temperature=0, max_tokens=4), use_tqdm=False)
        return list(output.outputs[0].token_ids)


def main() -> None:
    """Print the result of each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--first", action="append", default=[], help="folder whose packages have priority over installed ones"
    )
    parser.add_argument("--only", help="distribution to use")
    args = parser.parse_args()
    sys.path[:0] = args.first
    from corellm.errors import CorellmError
    from corellm.plugin.adapters import installed_adapters

    found: dict[str, Any] = {}
    for entry in installed_adapters():
        if args.only not in (None, entry.distribution):
            continue
        result: dict[str, Any] = {"distribution": entry.distribution}
        with tempfile.TemporaryDirectory() as folder:
            try:
                result["file"] = inspect.getfile(entry.load())
                result["tokens"] = use(entry, Path(folder))
            except CorellmError as error:
                result["error"] = f"{type(error).__name__}: {error}"
        found[entry.architecture] = result
    print(json.dumps(found))


if __name__ == "__main__":
    main()
