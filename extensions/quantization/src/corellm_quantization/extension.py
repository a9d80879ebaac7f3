"""What corellm calls of this distribution. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from corellm.hookspecs import hookimpl

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping
    from pathlib import Path

    from corellm.quantization import MakeQuantize


class Quantization:
    """Rounding of weights, checkpoints whose weights are rounded, which are written, too, and GGUF files."""

    @hookimpl(tryfirst=True)  # before strangers: the first to register a name has it
    def register_commands(self, subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
        """Add the command that writes checkpoints."""
        from corellm_quantization.commands import quantize

        quantize.add_parser(subparsers)

    @hookimpl
    def register_quantization(self, name: str) -> MakeQuantize | None:
        """Return rounding to 4 bits."""
        if name != "int4":
            return None
        from corellm_quantization.int4 import to_int4

        return to_int4

    @hookimpl
    def offer_checkpoint(self, path: Path, mmproj: str | None, revision: str | None) -> Path | None:
        """Return a directory for a GGUF file, for a directory that has one, or for one on the hub."""
        on_hub = ":" in str(path) and not path.exists()
        if not on_hub and path.suffix != ".gguf" and not any(path.glob("*.gguf")):
            return None
        from corellm_quantization.gguf.checkpoint import make_checkpoint
        from corellm_quantization.gguf.hub import download_gguf

        if on_hub:
            path, mmproj = download_gguf(path.as_posix(), revision, mmproj)
        return make_checkpoint(path, mmproj)

    @hookimpl
    def offer_quantized_reading(self, stated: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return what reads GGUF, GPTQ, AWQ, compressed-tensors, bitsandbytes, torchao and HQQ."""
        if stated.get("quant_method") == "gguf":
            from corellm_quantization.gguf.reading import METHOD as GGUF

            return {**stated, "quant_method": GGUF}
        from corellm_quantization.published import published

        if published(stated) is None:
            return None
        from corellm_quantization.reading import METHOD

        return {"quant_method": METHOD, "stated": stated}
