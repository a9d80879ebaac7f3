"""A soak: mixed, broken and hostile load on `corellm serve`, while canary requests must get the same output every time.

    python -m bench.soak --minutes 20

Exits with 1 if a canary's output changed, a request failed or is missing in the server's metrics, or something leaked.
Latencies are told and drawn; they depend on the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from bench.soak.plot import save_plot
from bench.soak.run import Report, soak
from extensions.server.tests.command import command


def main(arguments: list[str] | None = None) -> int:
    """Run it and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0, help="how long the load lasts (default 20)")
    parser.add_argument("--clients", type=int, default=8, help="requests at once (default 8)")
    parser.add_argument("--seed", type=int, default=0, help="of the requests (default 0)")
    parser.add_argument("--model", help="a checkpoint; default: a tiny Qwen2-VL of random weights")
    parser.add_argument("--plot", default="soak.png", help="where to draw it (default soak.png)")
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = Path(args.model) if args.model else _tiny(folder / "model")
        with command(model, folder, max_num_seqs=8, block_size=8, log_level="warning") as server:
            report = asyncio.run(soak(server, 60 * args.minutes, args.clients, args.seed))
        save_plot(report, args.plot)
    return tell(report)


def tell(report: Report) -> int:
    """Print a report; returns 1 if something is wrong."""
    print(report.tally)
    for name, seconds in report.latencies().items():
        print(f"canary, {name:9} p50 {seconds[0] * 1000:7.1f} ms   p99 {seconds[1] * 1000:7.1f} ms")
    problems = report.problems()
    print("\n".join(f"WRONG: {problem}" for problem in problems) or "nothing is wrong")
    return int(bool(problems))


def _tiny(path: Path) -> Path:
    import transformers

    from corellm_qwen_vl.tiny import make_tiny_checkpoint

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return make_tiny_checkpoint(path)


if __name__ == "__main__":
    sys.exit(main())
