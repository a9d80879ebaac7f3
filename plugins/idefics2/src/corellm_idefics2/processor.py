"""Transformers' processor for Idefics2, with images by Pillow, whose class transformers 5.17 hides at the top.

There it is a stand-in that raises where torchvision is not installed.
"""

from __future__ import annotations

from pathlib import Path

from transformers import AutoTokenizer, Idefics2Processor
from transformers.models.idefics2.image_processing_pil_idefics2 import Idefics2ImageProcessorPil


def make_processor(path: Path) -> Idefics2Processor:
    """Make it of a checkpoint's files."""
    images, tokenizer = Idefics2ImageProcessorPil.from_pretrained(path), AutoTokenizer.from_pretrained(path)
    settings, _ = Idefics2Processor.get_processor_dict(path)
    return Idefics2Processor.from_args_and_dict([images, tokenizer], settings)
