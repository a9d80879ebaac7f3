"""Runs every benchmark of this folder, each in a process of its own: `make bench`."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BENCHMARKS = (
    "sizes", "hot_path", "journey", "startup", "engine_overhead", "attention", "sampling", "media", "processing",
    "images", "throughput", "structured", "lora", "drafts", "server", "data_parallel", "replicas", "embedding",
    "precision", "same_results",
)  # fmt: skip


def main() -> int:
    """Run the chosen benchmarks; 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which: {', '.join(BENCHMARKS)} (default: all)")
    names = parser.parse_args().names or BENCHMARKS
    unknown = set(names) - set(BENCHMARKS)
    if unknown:
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(BENCHMARKS)}")
    failed = 0
    for name in names:
        print(f"\n=== {name}", flush=True)
        failed += subprocess.run([sys.executable, "-m", f"bench.{name}"], cwd=ROOT, check=False).returncode != 0
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
