"""Images per second of `LLM.generate`, one token out, and where the time goes: new images, and the same ones again.

A LLaVA of random weights: CLIP 256 x 6 at 224 pixels, 256 tokens an image, Llama 512 x 8. "new": no image was seen
before. "again": the same images with other questions, found by the hash of their bytes or pixels. "same": the same
requests.

The stages are milliseconds per image while nothing else runs: prompts are prepared one after the other (decode: from a
file to pixels in a child process, or a copy of pixels; hash; the Hugging Face processor; the rest), then the engine
runs all of them (encoders, decoder, the rest). `LLM.generate` does both at once, so its images take less than the sum.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from PIL import Image
from sklearn.datasets import load_sample_images

from corellm import LLM, SamplingParams
from corellm.media import image as media_image
from corellm.media.pool import MediaPool
from corellm.multimodal import processor as mm_processor
from corellm.tiny_checkpoints import randomize_weights
from corellm.worker.encoder_runner import EncoderRunner
from corellm.worker.model_runner import ModelRunner
from corellm_llava.tiny import make_tiny_checkpoint

SIZES = ((640, 480), (1024, 1024))
FORMS = ("JPEG", "PNG", "PIL")
TEXT = {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 8, "num_attention_heads": 8,
        "num_key_value_heads": 4, "head_dim": 64, "max_position_embeddings": 4096}  # fmt: skip
VISION = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 6, "num_attention_heads": 4,
          "image_size": 224, "patch_size": 14}  # fmt: skip
PREPARING, RUNNING = ("decode", "hash", "processor"), ("encoders", "decoder")
PARAMS = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)


def write_checkpoint(path: Path) -> None:
    """A tiny checkpoint's files with larger sizes in them."""
    make_tiny_checkpoint(path)
    config = transformers.AutoConfig.from_pretrained(path)
    for part, sizes in ((config.text_config, TEXT), (config.vision_config, VISION)):
        for name, value in sizes.items():
            setattr(part, name, value)
    model = transformers.LlavaForConditionalGeneration(config)
    randomize_weights(model, 0)
    model.save_pretrained(path)
    settings = json.loads((path / "processor_config.json").read_text(encoding="utf-8"))
    settings["image_processor"] |= {"size": {"shortest_edge": 224}, "crop_size": {"height": 224, "width": 224}}
    (path / "processor_config.json").write_text(json.dumps(settings), encoding="utf-8")


def images(form: str, size: tuple[int, int], count: int, turn: int) -> list[Any]:
    """Windows of two photographs, no two the same: files' bytes, or in memory."""
    sources = [Image.fromarray(pixels) for pixels in load_sample_images().images]
    made: list[Any] = []
    for i in range(count):
        left, top = (7 * i + turn) % 160, (3 * i + 5 * turn) % 67
        image = sources[i % 2].resize(size, box=(left, top, left + 480, top + 360))
        image.putpixel((i, turn), (255, 0, 255))
        file = io.BytesIO()
        if form != "PIL":
            image.save(file, form, **({"quality": 90} if form == "JPEG" else {}))
        made.append(image if form == "PIL" else file.getvalue())
    return made


def requests(shown: Sequence[Any], question: str) -> list[dict[str, Any]]:
    """A prompt for each image."""
    return [
        {"prompt": f"USER: <image>\n{question} number {i}? ASSISTANT:", "multi_modal_data": {"image": image}}
        for i, image in enumerate(shown)
    ]


@contextmanager
def clocked(owner: Any, name: str, stage: str, spent: defaultdict[str, float]) -> Iterator[None]:
    """Add the seconds that calls of a function take to a stage."""
    original = getattr(owner, name)

    @wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        try:
            return original(*args, **kwargs)
        finally:
            spent[stage] += time.perf_counter() - start

    setattr(owner, name, call)
    try:
        yield
    finally:
        setattr(owner, name, original)


def seconds(call: Callable[[], Any]) -> float:
    """How long a call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def stages(llm: LLM, prompts: Sequence[Any]) -> defaultdict[str, float]:
    """Seconds of each stage, for all prompts."""
    spent = defaultdict[str, float](float)
    prepared: list[Any] = []
    process = llm.engine.input_processor.process
    with ExitStack() as stack:
        for owner, name, stage in (
            (MediaPool, "image", "decode"), (media_image, "_from_image", "decode"),
            (mm_processor, "hash_item", "hash"), (type(llm.engine.context.hf_processor), "__call__", "processor"),
            (EncoderRunner, "run", "encoders"), (ModelRunner, "forward", "decoder"),
        ):  # fmt: skip
            stack.enter_context(clocked(owner, name, stage, spent))
        spent["preparing"] = seconds(lambda: prepared.extend(map(process, prompts)))
        spent["running"] = seconds(lambda: llm.generate(prepared, PARAMS, use_tqdm=False))
    return spent


def measure(llm: LLM, form: str, size: tuple[int, int], count: int, turns: int) -> None:
    """Print a line for new images, and one for those again."""
    rates: dict[str, list[float]] = {"new": [], "again": [], "same": []}
    spent: dict[str, list[defaultdict[str, float]]] = {"new": [], "again": []}
    for turn in range(turns):
        shown = images(form, size, count, turn)
        for kind, question in (("new", "What is"), ("again", "Who made"), ("same", "Who made")):
            prompts = requests(shown, question)
            rates[kind].append(count / seconds(lambda: llm.generate(prompts, PARAMS, use_tqdm=False)))  # noqa: B023
        llm.reset_mm_cache()
        llm.reset_prefix_cache()
        for kind in spent:
            spent[kind].append(stages(llm, requests(shown, kind)))
    for kind, measured in spent.items():
        row = f"{form:5}{size[0]:>5} x {size[1]:<6}{kind:6}{statistics.median(rates[kind]):>9.1f}"
        row += f"{statistics.median(rates['same']):>8.1f}" if kind == "again" else f"{'':8}"
        for whole, parts in (("preparing", PREPARING), ("running", RUNNING)):
            for turn_spent in measured:
                turn_spent[f"other {whole}"] = turn_spent[whole] - sum(turn_spent[part] for part in parts)
            for part in (*parts, f"other {whole}"):
                row += f"{1e3 * statistics.median(one[part] for one in measured) / count:>10.2f}"
        print(row, flush=True)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=32, help="of each turn, with an image each (default 32)")
    parser.add_argument("--turns", type=int, default=5, help="turns measured (default 5)")
    parser.add_argument("--forms", nargs="*", default=list(FORMS), choices=FORMS, help="(default: all)")
    parser.add_argument("--dtype", default="float32", help="(default float32; bfloat16 where the processor has it)")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    print(__doc__.partition("\n\n")[2])
    print(f"median of {args.turns} turns of {args.requests} images, {args.dtype}, {torch.get_num_threads()} threads\n")
    heads = "".join(f"{name:>10}" for name in (*PREPARING, "rest", *RUNNING, "rest"))
    print(f"{'images':19}{'':6}{'a second':>9}{'same':>8}{heads}")
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(Path(folder))
        with LLM(folder, dtype=args.dtype, max_model_len=1024, num_kv_blocks=64 * args.requests) as llm:
            llm.generate(requests(images("JPEG", SIZES[0], 4, args.turns), "What is"), PARAMS, use_tqdm=False)
            for form in args.forms:
                for size in SIZES:
                    measure(llm, form, size, args.requests, args.turns)


if __name__ == "__main__":
    main()
