"""Start times of whole processes; a model from its process's start to its first token, idle, cold and warm.

Medians of several runs. The model is a LLaVA of random weights of 75 MB, unless one is given. Idle memory is the
process's share of what it has in memory (PSS) after its first token; KV blocks take none before they are used. Cold is
the first batch, after one request; warm the median of the next three. CPU time is the figure to compare on a machine
that others use, too.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

IMAGE = Path(__file__).resolve().parents[1] / "demo" / "images" / "29.png"

COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "import corellm": ["-c", "import corellm"],
    "corellm plugins": ["-m", "corellm", "plugins"],
    "import torch, transformers' LLaVA": [
        "-c",
        "import torch; from transformers import AutoProcessor, LlavaForConditionalGeneration",
    ],
    "corellm run demo IMAGE QUESTION": ["-m", "corellm", "run", "demo", str(IMAGE), "What number is this?"],
}


def time_commands(runs: int) -> None:
    """Print the time of each command."""
    print(f"{'whole process':38}{'median s':>9}")
    for name, command in COMMANDS.items():
        seconds = []
        for _ in range(runs + 1):
            start = time.perf_counter()
            subprocess.run([sys.executable, *command], check=True, capture_output=True)
            seconds.append(time.perf_counter() - start)
        print(f"{name:38}{statistics.median(seconds[1:]):>9.2f}")


def time_model(model: str, dtype: str, runs: int) -> None:
    """Print the figures of fresh processes that serve a model, and what its imports take by package."""
    found = [run_model(model, dtype) for _ in range(runs + 1)][1:]
    print(f"\n{model} in {dtype}")
    for name in found[0]:
        print(f"{name:38}{statistics.median(figures[name] for figures in found):>9.2f}")
    command = [sys.executable, "-X", "importtime", __file__, "--serve", f"{time.monotonic()}", model, dtype]
    log = subprocess.run([*command, "--first-token"], check=True, capture_output=True, text=True).stderr
    imports = importing_seconds(log.splitlines())
    print(f"\n{'imports until then, by package':38}{sum(imports.values()):>9.2f}")
    for package, seconds in sorted(imports.items(), key=itemgetter(1), reverse=True)[:10]:
        print(f"  {package:36}{seconds:>9.2f}")


def run_model(model: str, dtype: str) -> dict[str, float]:
    """The figures of one process."""
    command = [sys.executable, __file__, "--serve", f"{time.monotonic()}", model, dtype]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def importing_seconds(log: Sequence[str]) -> dict[str, float]:
    """Seconds in the modules of each package, of what `python -X importtime` wrote."""
    seconds: dict[str, float] = defaultdict(float)
    for line in log:
        if match := re.match(r"import time:\s+(\d+) \|\s+\d+ \|\s+([^.\s]+)", line):
            seconds[match[2]] += int(match[1]) / 1e6
    return seconds


# --- the process that is measured -----------------------------------------------------------------------------------


def serve(started: float, model: str, dtype: str, *, first_token: bool) -> dict[str, float]:
    """Figures of this process, which was started at `started`: up to its first token, or with batches."""
    from PIL import Image

    from corellm import LLM, SamplingParams

    def generate(count: int, tokens: int, *, image: bool) -> float:
        shade = next(shades)
        items = [{"multi_modal_data": {"image": Image.new("RGB", (640, 480), (shade, i, 0))}} for i in range(count)]
        texts = [f"USER: {'<image> ' * image}{shade} {i}: what is it? ASSISTANT:" for i in range(count)]
        prompts = [{"prompt": text, **(item if image else {})} for text, item in zip(texts, items, strict=True)]
        start = time.perf_counter()
        llm.generate(prompts, SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True), use_tqdm=False)
        return time.perf_counter() - start

    shades = iter(range(256))
    with LLM(model, dtype=dtype, device="cpu", max_num_seqs=32, max_model_len=1024) as llm:
        generate(1, 1, image=True)
        figures = {
            "process start to first token, s": time.monotonic() - started,
            "the same in CPU time, s": time.process_time(),
            "idle memory, MB": proportional_memory() / 1e6,
        }
        if first_token:
            return figures
        for kind, image in (("image", True), ("text", False)):
            cold, *warm = [generate(32, 64, image=image) for _ in range(4)]
            figures[f"warm / cold, 32 requests with {kind}"] = statistics.median(warm) / cold
    return figures


def proportional_memory() -> int:
    """Bytes in memory, those shared with other processes divided among them."""
    rollup = Path("/proc/self/smaps_rollup").read_text(encoding="ascii")
    (kilobytes,) = re.findall(r"^Pss:\s+(\d+) kB", rollup, re.MULTILINE)
    return int(kilobytes) * 1024


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3, help="runs per command, after one to warm up (default 3)")
    parser.add_argument("--model", help="a checkpoint whose prompts have <image> (default: one of random weights)")
    parser.add_argument("--dtype", default="auto", help="of the model (default: the checkpoint's)")
    parser.add_argument("--serve", nargs=3, metavar=("STARTED", "MODEL", "DTYPE"), help=argparse.SUPPRESS)
    parser.add_argument("--first-token", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        started, model, dtype = args.serve
        print(json.dumps(serve(float(started), model, dtype, first_token=args.first_token)))
        return
    time_commands(args.runs)
    if args.model:
        time_model(args.model, args.dtype, args.runs)
        return
    with tempfile.TemporaryDirectory() as directory:
        make = (
            f"from corellm_llava.tiny import make_tiny_checkpoint as m; m({directory!r}, hidden_size=512, num_layers=8)"
        )
        subprocess.run([sys.executable, "-c", make], check=True, capture_output=True)
        time_model(directory, args.dtype, args.runs)


if __name__ == "__main__":
    main()
