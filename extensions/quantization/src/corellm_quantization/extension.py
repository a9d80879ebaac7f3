"""What corellm calls of this distribution. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from corellm.hookspecs import hookimpl

if TYPE_CHECKING:
    from collections.abc import Mapping

    from corellm.quantization import MakeQuantize


class Quantization:
    """Rounding of weights, and checkpoints whose weights are rounded."""

    @hookimpl
    def register_quantization(self, name: str) -> MakeQuantize | None:
        """Return rounding to 4 bits."""
        if name != "int4":
            return None
        from corellm_quantization.int4 import to_int4

        return to_int4

    @hookimpl
    def offer_quantized_reading(self, stated: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return what reads GPTQ, AWQ, compressed-tensors and bitsandbytes."""
        from corellm_quantization.published import published

        if published(stated) is None:
            return None
        from corellm_quantization.reading import METHOD

        return {"quant_method": METHOD, "stated": stated}
