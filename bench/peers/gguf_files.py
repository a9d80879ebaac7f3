"""Writes a LLaVA as GGUF files in float16: `python -m bench.peers.gguf_files MODEL FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> None:
    """Write `F16.gguf` and `mmproj.gguf`."""
    import torch
    import transformers
    from gguf.constants import GGMLQuantizationType as Kind

    from extensions.quantization.tests.gguf_files import write_text, write_tower

    model_path, folder = map(Path, sys.argv[1:])
    folder.mkdir(parents=True, exist_ok=True)
    model = transformers.LlavaForConditionalGeneration.from_pretrained(model_path, dtype=torch.bfloat16)
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_path)
    images = transformers.CLIPImageProcessorPil.from_pretrained(model_path)
    write_tower(folder / "mmproj.gguf", model, images, kind=Kind.F16)
    write_text(folder / "F16.gguf", model, tokenizer, lambda name: Kind.F16)


if __name__ == "__main__":
    main()
