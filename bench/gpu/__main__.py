"""Measures corellm on this machine's GPU in under ten minutes: `python -m bench.gpu --out FOLDER`.

In this order: the GPU's ceilings (copy, matrix product); random LLaVA checkpoints of 1 and 7 B parameters; attention
kernels; the engine and two workloads, next to transformers; the kernels' tests. Prints a table last and writes
`results.json`, `table.txt` and `log.txt`. Needs no installed corellm, only torch, Triton, transformers, accelerate,
pluggy, msgspec, pillow, pytest and hypothesis. `--device cpu --quick` shows with tiny shapes that everything runs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

from bench.gpu import source_tree, table
from bench.gpu.results import Run

JOBS = {
    "ceilings": 60, "checkpoints": 100, "attention": 90, "corellm_side 7b": 130, "transformers_side 7b": 100,
    "corellm_side 1b": 90, "transformers_side 1b": 75, "tests": 95,
}  # fmt: skip
"""Every job, a module of this package and a model, with the most seconds it may take."""
QUICK = ["ceilings", "checkpoints", "attention", "corellm_side tiny", "transformers_side tiny", "tests"]


def main() -> int:
    """Run all jobs; 1 if something failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="tiny shapes, to see on a CPU that everything runs")
    parser.add_argument("--budget", type=float, default=550.0, help="seconds for everything (default 550)")
    parser.add_argument("--out", default=os.environ.get("OUT", "gpu-bench"), help="folder for results (default: $OUT)")
    parser.add_argument("--scratch", help="folder for 17 GB of checkpoints (default: /dev/shm)")
    parser.add_argument("--jobs", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.jobs:
        return _work(Run(**json.loads(args.jobs[0])), args.jobs[1:])
    if (args.device == "cpu") != args.quick:
        parser.error("--device cpu and --quick go together: full sizes take days there, tiny ones say nothing of a GPU")
    out = Path(args.out).resolve()
    out.mkdir(parents=True, exist_ok=True)
    for old in ("results.jsonl", "log.txt"):
        (out / old).unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="gpu-bench-", dir=args.scratch or "/dev/shm") as scratch:
        run = Run(args.device, args.quick, str(out), scratch, time.monotonic() + args.budget)
        os.environ |= {
            "PYTHONPATH": source_tree.python_path(Path(scratch) / "metadata"), "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_VERBOSITY": "error", "TQDM_DISABLE": "1", "OMP_WAIT_POLICY": "PASSIVE",
        }  # fmt: skip
        if args.quick:
            os.environ |= {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
            run_jobs(run, QUICK, 300)  # in one process: most of the time is imports
        for job, seconds in {} if args.quick else JOBS.items():
            run_jobs(run, [job], seconds)
            if "copy" not in run.figures():
                break  # without a GPU, or a ceiling, the rest says nothing
        return _report(run)


def run_jobs(run: Run, jobs: Sequence[str], seconds: float) -> None:
    """Run jobs in a process of their own, until its time is up: one that hangs or crashes costs itself."""
    left = max(0.1, min(seconds, run.deadline - time.monotonic()))
    told = json.dumps({**asdict(run), "deadline": time.monotonic() + left})
    with (Path(run.out) / "log.txt").open("ab") as log:
        try:
            command = [sys.executable, "-m", "bench.gpu", "--jobs", told, *jobs]
            code = subprocess.run(command, cwd=source_tree.ROOT, stderr=log, timeout=left, check=False).returncode
        except subprocess.TimeoutExpired:
            run.failure(jobs[-1], "stopped at its time limit")
        else:
            if code:
                run.failure(jobs[-1], f"the process ended with {code}; log.txt says why")


def _work(run: Run, jobs: Sequence[str]) -> int:
    for job in jobs:
        module, *model = job.split()
        with run.guard(job):
            import_module(f"bench.gpu.{module}").measure(run, *model)
    return 0


def _report(run: Run) -> int:
    records, out = run.read(), Path(run.out)
    failures = [record for record in records if record["kind"] == "failure"]
    text = table.table(run.figures(), failures, quick=run.quick)
    (out / "results.json").write_text(json.dumps(records, indent=1), encoding="utf-8")
    (out / "table.txt").write_text(text + "\n", encoding="utf-8")
    (out / "results.jsonl").unlink()
    print(text, flush=True)
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
