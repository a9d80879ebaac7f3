"""Start times of whole processes: importing, listing plugins, running one request. Medians of several runs."""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

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


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3, help="runs per command, after one to warm up (default 3)")
    args = parser.parse_args()
    print(f"{'whole process':38}{'median s':>9}")
    for name, command in COMMANDS.items():
        seconds = []
        for _ in range(args.runs + 1):
            start = time.perf_counter()
            subprocess.run([sys.executable, *command], check=True, capture_output=True)
            seconds.append(time.perf_counter() - start)
        print(f"{name:38}{statistics.median(seconds[1:]):>9.2f}")


if __name__ == "__main__":
    main()
