"""A toy adapter behind a multimodal processor: an image becomes as many tokens as it is wide."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pluggy
import torch
from PIL import Image

from corellm import hookspecs
from corellm.config import MultiModalConfig
from corellm.hookspecs import hookimpl
from corellm.multimodal import DataParser, MultiModalFieldConfig, PromptReplacement, dummy_images
from corellm.multimodal.processor import MultiModalProcessor

IMAGE, VIDEO = 9, 8


class Toy:
    """An image `w` pixels wide becomes `w` tokens; its only tensor is its width and colour."""

    def __init__(self) -> None:
        self.processed = 0

    @hookimpl
    def get_supported_mm_limits(self) -> Mapping[str, int | None]:
        return {"image": 4}

    @hookimpl
    def get_data_parser(self) -> DataParser:
        return DataParser(MultiModalConfig(max_image_pixels=10**6), hidden_size=8)

    @hookimpl
    def get_dummy_text(self) -> str:
        return "I"

    @hookimpl
    def get_dummy_mm_data(self) -> Mapping[str, Any]:
        return {"image": dummy_images(1, width=20, height=2)}

    @hookimpl
    def call_hf_processor(self, mm_data: Mapping[str, Any]) -> Mapping[str, Any]:
        (image,) = mm_data["image"]
        self.processed += 1
        return {"pixel_values": torch.tensor([[image.width, *image.getpixel((0, 0))]]), "input_ids": torch.ones(1, 3)}

    @hookimpl
    def get_mm_fields_config(self) -> Mapping[str, MultiModalFieldConfig]:
        return {"pixel_values": MultiModalFieldConfig.batched("image")}

    @hookimpl
    def apply_hf_processor_tokens_only(self, token_ids: list[int]) -> list[int]:
        return token_ids

    @hookimpl
    def get_prompt_updates(self, out_mm_kwargs: Mapping[str, Any]) -> list[PromptReplacement]:
        def replacement(i: int) -> list[int]:
            return [IMAGE] * int(out_mm_kwargs["image"][i]["pixel_values"].data[0])

        return [PromptReplacement("image", target=[IMAGE], replacement=replacement)]


def make(adapter: Toy, **config: Any) -> MultiModalProcessor:
    manager = pluggy.PluginManager("corellm")
    manager.add_hookspecs(hookspecs)
    manager.register(adapter)
    return MultiModalProcessor(
        manager.hook,
        MultiModalConfig(**config),
        tokenize=lambda text: [{"I": IMAGE, "V": VIDEO}.get(c, ord(c)) for c in text],
        token_text=lambda token: "I" if token == IMAGE else chr(token),
        namespace=("toy", "1"),
        seq_len=100,
        executor=ThreadPoolExecutor(2),
    )


def make_image(width: int, red: int = 0) -> Image.Image:
    return Image.new("RGB", (width, 2), (red, 0, 0))
