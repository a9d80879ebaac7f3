"""The command: what is run with which budget, and where the results go.

Ceilings of the machine; the kernels' tests; each kernel against its bytes or against torch; the engine on random LLaVA
checkpoints of 1 and 7 B parameters; four workloads against transformers. Prints a table last; writes `results.json`,
`table.txt`, logs and, with matplotlib, plots. The checkout is used from its sources: corellm need not be installed,
only what it and its tests import (torch, Triton, transformers, accelerate, pluggy, pillow, pytest, hypothesis).

The first NVIDIA GPU is taken; `CUDA_VISIBLE_DEVICES` chooses another. `--device cpu --quick` is for those who change
this program: with tiny shapes it runs what a CPU can, kernels in Triton's interpreter, the engine without its kernels
and graphs.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from bench.gpu import asked, jobs, plots, report, source_tree
from bench.gpu.records import Records
from bench.gpu.settings import Settings

_REPORTING = 12.0
"""Seconds kept for table and plots."""
_CHECKPOINT_BYTES = 20 * 10**9


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="run.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="default cuda")
    parser.add_argument("--quick", action="store_true", help="tiny shapes, for a CPU")
    parser.add_argument("--parts", nargs="+", choices=jobs.PARTS, default=list(jobs.PARTS), metavar="PART",
                        help=f"of {', '.join(jobs.PARTS)} (default all; ceilings always)")  # fmt: skip
    parser.add_argument("--models", nargs="+", choices=jobs.MODELS, default=list(jobs.MODELS), metavar="MODEL",
                        help=f"of {', '.join(jobs.MODELS)} (default both)")  # fmt: skip
    parser.add_argument("--budget", type=float, default=560.0, help="seconds for everything (default 560)")
    parser.add_argument("--out", default=os.environ.get("OUT", "gpu-bench"), help="folder for results (default: $OUT)")
    parser.add_argument("--scratch", help="folder for 17 GB of checkpoints (default: in memory if they fit, else /tmp)")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    parser.add_argument("pieces", nargs="*", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if not args.job and (args.device == "cpu") != args.quick:
        parser.error(
            "--device cpu and --quick go together: there full sizes take days, and on a GPU tiny ones say nothing"
        )
    return args


def main() -> int:
    """Run what was chosen; 1 if something failed."""
    args = parse()
    if args.job:
        jobs.run_pieces(Settings.loads(args.job), args.pieces)
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was begun is ended and removed
    started = time.monotonic()
    out = Path(args.out).resolve()
    out.mkdir(parents=True, exist_ok=True)
    results = out / "results.jsonl"  # kept here while it grows: it survives whatever ends this process
    for old in (results, out / "log.txt"):
        old.unlink(missing_ok=True)
    folder = args.scratch or _roomy_folder(quick=args.quick)
    with tempfile.TemporaryDirectory(prefix="gpu-bench-", dir=folder) as scratch:
        metadata = Path(scratch) / "metadata"
        source_tree.write_metadata(metadata)
        os.environ |= jobs.environment(source_tree.python_path(metadata), device=args.device)
        settings = Settings(
            device=args.device,
            quick=args.quick,
            results=str(results),
            out=str(out),
            scratch=scratch,
            started=started,
            deadline=started + args.budget - _REPORTING,
        )
        models = ["tiny"] if args.quick else args.models
        for number, group in enumerate(jobs.groups(args.parts, models, quick=args.quick)):
            jobs.run_group(group, settings)
            if not number and "copy" not in asked.figures_of(settings.records.read()):
                break  # without a device, or a ceiling, the rest says nothing
        code = _report(settings.records, out, models, quick=args.quick, started=started)
        results.unlink()  # results.json has it all
        return code


def _report(records: Records, out: Path, models: list[str], *, quick: bool, started: float) -> int:
    """Plots, JSON, and the table last."""
    figures = asked.figures_of(records.read())
    try:
        drawn = plots.draw(figures, models, out)
        records.say(f"plots in {out}: {', '.join(drawn) or 'none, for lack of figures'}")
    except ImportError:
        records.note("report", "plots", "matplotlib is not installed")
    except Exception as error:
        records.failure("report", "plots", f"{type(error).__name__}: {error}")
    found = records.read()
    text = report.table(found, models, quick=quick, seconds=time.monotonic() - started)
    whole = {"asked": asked.summary(found, models), "quick": quick, "records": [asdict(record) for record in found]}
    (out / "results.json").write_text(json.dumps(whole, indent=1), encoding="utf-8")
    (out / "table.txt").write_text(text + "\n", encoding="utf-8")
    print(text, flush=True)
    return int(any(record.kind == "failure" for record in found))


def _roomy_folder(*, quick: bool) -> str | None:
    """Memory, if it has room for the checkpoints and as much again; else what the system takes for temporary files."""
    memory = Path("/dev/shm")
    if quick or not memory.is_dir():
        return None
    pages = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    room = min(shutil.disk_usage(memory).free, pages // 2)
    return str(memory) if room > _CHECKPOINT_BYTES else None
