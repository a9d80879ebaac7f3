"""From prompt and item to tensors and tokens: our front end against the Hugging Face processor alone.

Both get the same text and the same items, one item to a prompt. "file": as people and servers have them, photographs of
640 x 480 pixels as JPEG, audio of ten seconds as FLAC, in bytes; before the bare processor Pillow or soundfile decodes
them. "memory": decoded already, `PIL.Image` and samples at 16 kHz. Processors have the sizes of the published
checkpoints; models are tiny and are not run. "new": the item is not in the cache. "cached": it is, and is
found by the hash of its bytes or pixels.

With two threads two callers run at a time, each with its own prompt; torch itself is held to one thread. Ours and
bare calls take turns, and a ratio is the median of those of single turns: other work of the machine slows both.
"""

from __future__ import annotations

import argparse
import importlib
import io
import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import soundfile
import torch
import transformers
from PIL import Image
from sklearn.datasets import load_sample_images

from corellm import EngineConfig
from corellm.loading.loading import LoadedModel, load
from corellm.loading.locating import locate
from corellm_qwen_vl.original.reference import pixels

RATE = 16_000
QWEN = "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>What is this?<|im_end|>\n<|im_start|>assistant\n"

Call = Callable[[str, Any], Any]
"""A prompt and its item, processed."""


def auto_processor(path: Path, model: LoadedModel) -> Call:
    """`AutoProcessor`, for images."""
    processor = transformers.AutoProcessor.from_pretrained(path)
    return lambda text, image: processor(text=text, images=[image], return_tensors="pt")


def audio_processor(path: Path, model: LoadedModel) -> Call:
    """`AutoProcessor`, for audio."""
    processor = transformers.AutoProcessor.from_pretrained(path)
    return lambda text, audio: processor(text=text, audio=[audio], sampling_rate=RATE, return_tensors="pt")


def image_processor(path: Path, model: LoadedModel) -> Call:
    """The image processor and the tokenizer: `AutoProcessor` of these families needs torchvision."""
    images = transformers.Qwen2VLImageProcessorPil.from_pretrained(path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    return lambda text, image: (tokenizer(text, return_tensors="pt"), images([image], return_tensors="pt"))


def published_processing(path: Path, model: LoadedModel) -> Call:
    """As the checkpoint's published code has it: transformers has no processor for this family."""
    tokenizer = model.context.tokenizer
    return lambda text, image: (tokenizer(text, return_tensors="pt"), pixels(image, 448)[None])


@dataclass(frozen=True)
class Family:
    """A family, and how its processor is called bare."""

    module: str
    prompt: str
    settings: Mapping[str, Mapping[str, Any]]
    """`{file: what to change in it}`: sizes as published."""
    bare: Callable[[Path, LoadedModel], Call] = auto_processor
    modality: str = "image"
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of `make_tiny_checkpoint`."""


FAMILIES = {
    "llava 336": Family(
        "corellm_llava.tiny",
        "USER: <image>\nWhat is this? ASSISTANT:",
        {
            "processor_config.json": {
                "image_processor": {"size": {"shortest_edge": 336}, "crop_size": {"height": 336, "width": 336}}
            }
        },
    ),
    "fuyu 1920 x 1080": Family(
        "corellm_fuyu.tiny",
        "What is this?\n",
        {"processor_config.json": {"image_processor": {"size": {"height": 1080, "width": 1920}}}},
    ),
    "blip2 224": Family(
        "corellm_blip2.tiny",
        "Question: What is this? Answer:",
        {"processor_config.json": {"image_processor": {"size": {"height": 224, "width": 224}}}},
    ),
    "qwen2-vl": Family(
        "corellm_qwen_vl.tiny",
        QWEN,
        {"preprocessor_config.json": {"size": {"shortest_edge": 3_136, "longest_edge": 12_845_056}}},
        image_processor,
    ),
    "qwen3-vl": Family(
        "corellm_qwen_vl.tiny",
        QWEN,
        {"preprocessor_config.json": {"size": {"shortest_edge": 65_536, "longest_edge": 16_777_216}}},
        image_processor,
        options={"architecture": "Qwen3VLForConditionalGeneration"},
    ),
    "qwen-vl 448": Family(
        "corellm_qwen_vl.original.tiny",
        "Image 1: <img></img>\nWhat is this?",
        {"config.json": {"visual": {"image_size": 448}}},
        published_processing,
    ),
    "qwen2-audio": Family(
        "corellm_qwen_audio.tiny",
        "<|audio_bos|><|AUDIO|><|audio_eos|>What is this?",
        {"processor_config.json": {"feature_extractor": {"feature_size": 128}}},
        audio_processor,
        modality="audio",
    ),
}


def photographs(count: int) -> list[Image.Image]:
    """Windows of two photographs, no two the same, in memory."""
    sources = [Image.fromarray(pixels) for pixels in load_sample_images().images]
    boxes = [(5 * i, 3 * i, 5 * i + 480, 3 * i + 360) for i in range(count)]
    return [sources[i % len(sources)].resize((640, 480), box=box) for i, box in enumerate(boxes)]


def recordings(count: int) -> list[np.ndarray[Any, Any]]:
    """Ten seconds of a tone in noise, no two the same."""
    seconds = np.arange(10 * RATE) / RATE
    noise = np.random.default_rng(0).normal(0, 0.05, (count, len(seconds)))
    tones = np.sin(seconds * 2 * np.pi * (220 + 20 * np.arange(count)[:, None])) / 2
    return list((tones + noise).astype(np.float32))


def as_file(item: Any) -> bytes:
    """Return an item as a file's bytes."""
    file = io.BytesIO()
    if isinstance(item, Image.Image):
        item.save(file, "JPEG", quality=90)
    else:
        soundfile.write(file, item, RATE, format="FLAC")
    return file.getvalue()


def decoding(bare: Call, modality: str) -> Call:
    """A bare processor for files: what its user writes before it."""
    if modality == "image":
        return lambda text, file: bare(text, Image.open(io.BytesIO(file)).convert("RGB"))
    return lambda text, file: bare(text, soundfile.read(io.BytesIO(file), dtype="float32")[0])


def merge(settings: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Lay changes over settings, deep."""
    for name, value in changes.items():
        if isinstance(value, Mapping) and name in settings:
            merge(settings[name], value)
        else:
            settings[name] = value


def open_family(family: Family, path: Path) -> LoadedModel:
    """The family's tiny checkpoint with a processor of the published size, loaded; its encoder would not fit."""
    importlib.import_module(family.module).make_tiny_checkpoint(path, **family.options)
    for name, changes in family.settings.items():
        settings = json.loads((path / name).read_text(encoding="utf-8"))
        merge(settings, changes)
        (path / name).write_text(json.dumps(settings), encoding="utf-8")
    config = EngineConfig.from_kwargs(model=str(path), num_kv_blocks=256)
    return load(config, locate(config.model), check_encoders=False)


def seconds_per_item(call: Call, prompt: str, items: Sequence[Any], callers: ThreadPoolExecutor, threads: int) -> float:
    """Seconds per item over all callers; results are kept until all are done, as in a batch."""

    def work(share: Sequence[Any]) -> list[Any]:
        return [call(prompt, item) for item in share]

    start = time.perf_counter()
    made = list(callers.map(work, [items[caller::threads] for caller in range(threads)]))
    return (time.perf_counter() - start) / sum(map(len, made))


def measure(
    family: Family, model: LoadedModel, bare: Call, items: Sequence[Any], threads: int, turns: int
) -> np.ndarray[Any, Any]:
    """Seconds per item, `[turns, 3]`: bare, new, cached."""
    processor = model.input_processor

    def ours(text: str, item: Any) -> Any:
        return processor.process({"prompt": text, "multi_modal_data": {family.modality: item}})

    spent = []
    with ThreadPoolExecutor(threads) as callers:
        for turn in range(turns + 1):  # the first is to warm up
            processor.mm_processor.cache.clear()
            before = seconds_per_item(bare, family.prompt, items, callers, threads) if turn % 2 else None
            new = seconds_per_item(ours, family.prompt, items, callers, threads)
            after = seconds_per_item(bare, family.prompt, items, callers, threads) if before is None else None
            cached = seconds_per_item(ours, family.prompt, [*items] * 25, callers, threads)
            spent.append((before or after, new, cached))
    return np.array(spent[1:])


def report(name: str, given: str, threads: int, seconds: np.ndarray[Any, Any]) -> None:
    """Print a line of the table."""
    rates = 1 / np.median(seconds, axis=0)
    ratios = np.median(seconds[:, :1] / seconds, axis=0)
    print(
        f"{name:18}{given:9}{threads:>8}{rates[0]:>9.1f}{rates[1]:>9.1f}{ratios[1]:>7.2f}x{rates[2]:>9.0f}{ratios[2]:>6.0f}x",
        flush=True,
    )


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="*", default=list(FAMILIES), choices=list(FAMILIES), metavar="FAMILY")
    parser.add_argument("--items", type=int, default=4, help="distinct items of each turn (default 4)")
    parser.add_argument("--turns", type=int, default=15, help="turns measured (default 15)")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    media: dict[str, Sequence[Any]] = {"image": photographs(args.items), "audio": recordings(args.items)}
    print(__doc__.partition("\n\n")[2])
    print(f"items per second, median of {args.turns} turns of {args.items}; torch.set_num_threads(1)\n")
    print(f"{'family':18}{'given as':9}{'threads':>8}{'bare':>9}{'new':>9}{'':8}{'cached':>9}")
    for name in args.families:
        family = FAMILIES[name]
        with tempfile.TemporaryDirectory() as folder:
            model = open_family(family, Path(folder))
            bare = family.bare(Path(folder), model)
            decoded = media[family.modality]
            forms = {"file": ([*map(as_file, decoded)], decoding(bare, family.modality)), "memory": (decoded, bare)}
            try:
                bare(family.prompt, decoded[0])
            except TypeError as error:  # as Fuyu's from transformers 5.22 on, without torchvision
                print(f"{name:18}the bare processor fails by itself: {error}")
                forms = {}
            for given, (items, call) in forms.items():
                for threads in (1, 2):
                    report(name, given, threads, measure(family, model, call, items, threads, args.turns))
            model.executor.shutdown()


if __name__ == "__main__":
    main()
