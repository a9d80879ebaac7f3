"""Compares corellm with other engines on this machine's CPU: `make bench-peers`, or `python -m bench.peers`.

Each workload runs on each engine in a process of its own, in turns, round after round: the same checkpoints of random
weights, prompts, images, type and number of threads, greedy. The first batch after loading ("cold") and the median of
later ones ("warm") are separate figures. Ratios are formed within a round, and the median of the rounds counts; the
floor is what this machine's memory bandwidth and matrix rate allow, measured in each round.

Peers are installed by `python -m bench.peers.install`; one that is not there or fails is named with the reason, and
the others go on. Ctrl-C ends all processes; what was measured so far is shown and kept.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from bench.peers.environments import CACHE
from bench.peers.plot import save_plots
from bench.peers.results import Results
from bench.peers.run import Benchmark, Settings, turns
from bench.peers.sides import OURS_OF_BITS, SIDES
from bench.peers.sizes import SIZES
from bench.peers.summary import rows
from bench.peers.table import table
from bench.peers.workloads import WORKLOADS

_EPILOG = f"""\
workloads:
{chr(10).join(f"  {name}  {text}" for name, text in WORKLOADS.items())}

sides: {"; ".join(SIDES)}

sizes: small (LLaVA, 37 M parameters), medium (LLaVA, 1.2 B), qwen (Qwen2-VL, 38 M), tiny (only to see that all works)

examples:
  python -m bench.peers.install                                # the peers, once: some gigabytes
  python -m bench.peers --quick                                # some minutes: small, one round, a quarter of the work
  python -m bench.peers                                        # small and medium, five rounds: hours
  python -m bench.peers --bits 8 4 --sizes medium              # weights of 8 and 4 bits, beside llama.cpp's
  python -m bench.peers --workloads W1 W4 --sides corellm openvino-genai --rounds 7 --sizes medium
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 1 if a side failed, 130 after Ctrl-C."""
    parser = _parser()
    settings = _settings(parser, parser.parse_args(arguments))
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a supervisor's stop is a Ctrl-C
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 150)
    settings.out.mkdir(parents=True, exist_ok=True)
    interrupted = False
    with _Bar(console, sum(1 for _ in turns(settings))) as bar:
        benchmark = Benchmark(settings, bar, _described(settings))
        try:
            benchmark.run()
        except KeyboardInterrupt:
            interrupted = True
    _report(console, benchmark.results, settings)
    failed = any(measurement.failure for measurement in benchmark.results.measurements)
    return 130 if interrupted else int(failed)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.peers", description=__doc__, epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, help="how often everything is measured (default 5; 1 with --quick)")
    parser.add_argument("--sides", nargs="+", choices=SIDES, metavar="SIDE",
                        help="which engines (default: all with weights of --bits)")  # fmt: skip
    parser.add_argument("--bits", nargs="+", type=int, choices=OURS_OF_BITS, metavar="BITS", default=[16],
                        help="sides with weights of 16 bits (the default), 8 or 4, if --sides names none")  # fmt: skip
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, metavar="W", help="which (default: all)")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, metavar="SIZE",
                        help="which models (default: small and medium; small with --quick)")  # fmt: skip
    parser.add_argument("--dtype", choices=("auto", "bfloat16", "float32"), default="auto",
                        help="type of weights and computation; auto: bfloat16 where the CPU has instructions for it, "
                        "else float32")  # fmt: skip
    parser.add_argument("--threads", type=int, help="of each engine (default: one for each usable core)")
    parser.add_argument("--quick", action="store_true", help="some minutes: one round of a quarter of the work")
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds for one process (default 1800)")
    parser.add_argument("--cache", type=Path, default=CACHE, help=f"environments and checkpoints (default {CACHE})")
    parser.add_argument("--out", type=Path, default=Path("bench-peers"),
                        help="folder for peers.json, plots and logs (default bench-peers)")  # fmt: skip
    return parser


def _settings(parser: argparse.ArgumentParser, args: argparse.Namespace) -> Settings:
    cores = len(os.sched_getaffinity(0))
    rounds = args.rounds if args.rounds is not None else 1 if args.quick else 5
    threads = args.threads if args.threads is not None else cores
    if rounds < 1 or args.timeout <= 0:
        parser.error("--rounds and --timeout must be positive")
    if not 1 <= threads <= cores:
        parser.error(f"--threads must be 1 to {cores}, the usable cores; got {threads}")
    of_bits = [name for name, side in SIDES.items() if side.bits in args.bits]
    return Settings(
        rounds=rounds, sides=_in_order(SIDES, args.sides or of_bits), workloads=_in_order(WORKLOADS, args.workloads),
        sizes=_in_order(SIZES, args.sizes or (["small"] if args.quick else ["small", "medium"])),
        dtype=_native_dtype() if args.dtype == "auto" else args.dtype, quick=args.quick, threads=threads,
        cache=args.cache.resolve(), out=args.out.resolve(), timeout=args.timeout,
    )  # fmt: skip


def _in_order(known: Any, chosen: Sequence[str] | None) -> tuple[str, ...]:
    return tuple(name for name in known if chosen is None or name in chosen)


def _native_dtype() -> str:
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    return "bfloat16" if {"avx512_bf16", "amx_bf16", "bf16"} & set(flags) else "float32"


def _described(settings: Settings) -> dict[str, Any]:
    cpu = [line for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if "model name" in line]
    versions = {name: metadata.version(name) for name in ("corellm", "torch", "transformers")}
    shown = {name: str(value) if isinstance(value, Path) else value for name, value in asdict(settings).items()}
    return shown | {"cpu": cpu[0].partition(":")[2].strip() if cpu else platform.machine(), "versions": versions}


def _report(console: Any, results: Results, settings: Settings) -> None:
    """The table, and where the files are."""
    found = rows(results.measurements)
    title = f"{settings.dtype}, {settings.threads} threads, {settings.rounds} round(s)"
    for part in table(found, title + (", quick" if settings.quick else "")):
        console.print(part)
    for rates in results.machine[:1]:
        console.print(f"machine: {rates['bytes_per_s'] / 1e9:.1f} GB/s, {rates['flops_per_s'] / 1e9:.0f} GFLOP/s")
    if found:
        files = [settings.out / "peers.json", *save_plots(found, title, settings.out)]
        console.print("written: " + ", ".join(map(str, files)), soft_wrap=True)


class _Bar:
    """A progress bar: one part for each process."""

    def __init__(self, console: Any, total: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (BarColumn(30), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
        self._bar = Progress(*columns, console=console)
        self._task = self._bar.add_task("", total=total)

    def __enter__(self) -> _Bar:
        self._bar.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._bar.stop()

    def doing(self, what: str) -> None:
        self._bar.update(self._task, description=what)

    def done(self, what: str, problem: str | None) -> None:
        self._bar.advance(self._task)
        if problem or not self._bar.console.is_terminal:
            self._bar.console.print(f"FAILED {what}: {problem}" if problem else what, markup=False)


if __name__ == "__main__":
    sys.exit(main())
