"""Turn a downloaded Qwen-VL checkpoint's pickles into safetensors: `python -m corellm_qwen_vl.original.convert DIR`.

Reads with torch's restricted unpickler, which builds tensors and runs no code. Each file becomes one beside it; weights
keep their names, so no index is needed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from corellm.errors import CheckpointError


def convert(path: Path) -> list[Path]:
    """Write a safetensors file for each `*.bin` in a directory.

    Returns:
        The files written.

    Raises:
        CheckpointError: there is none, or one cannot be read without running what it holds.
    """
    import torch
    from safetensors.torch import save_file

    sources = sorted(path.glob("*.bin"))
    if not sources:
        raise CheckpointError(f"{path} has no *.bin to convert")
    written: list[Path] = []
    for source in sources:
        try:
            weights = torch.load(source, map_location="cpu", weights_only=True, mmap=True)
        except Exception as error:  # a broken or hostile pickle raises anything
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise CheckpointError(f"{source}: not a file of weights that can be read safely: {reason}") from error
        target = source.with_name(source.stem.replace("pytorch_model", "model") + ".safetensors")
        save_file({name: tensor.contiguous() for name, tensor in weights.items()}, target, metadata={"format": "pt"})
        written.append(target)
    return written


def main(arguments: list[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m corellm_qwen_vl.original.convert", description=convert.__doc__)
    parser.add_argument("directory", type=Path, help="with the checkpoint's *.bin files")
    try:
        for file in convert(parser.parse_args(arguments).directory):
            print(file)
    except CheckpointError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
