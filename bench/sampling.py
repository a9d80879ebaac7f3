"""The next tokens of 32 sequences on the CPU: the compiled kernel against torch, logits to token ids.

Milliseconds of the best of several runs that take turns, and the ratio. Logits are normal of standard deviation 3.
"""

from __future__ import annotations

import argparse
import os
from functools import partial
from typing import cast

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch

from bench.attention import best
from corellm import SamplingParams
from corellm.sampling.device_sampling import Sample
from corellm.sampling.sampler import Sampler
from corellm.sampling.sampling_state import SamplingState
from corellm.scheduling.batch import NewSequence
from corellm.system.process import usable_cpus
from corellm_kernels.cpu.library import unavailable
from corellm_kernels.cpu.sampling import sample

ROWS = 32
VOCABULARIES = (8_192, 152_064)
PARAMS = {
    "greedy": SamplingParams(temperature=0),
    "temperature 1": SamplingParams(),
    "top-p 0.9": SamplingParams(top_p=0.9),
    "top-k 20, top-p 0.8": SamplingParams(temperature=0.7, top_k=20, top_p=0.8),
    "min-p 0.05": SamplingParams(min_p=0.05),
}


def state(row: int, params: SamplingParams, vocab: int) -> SamplingState:
    """A sequence that begins."""
    sequence = NewSequence(str(row), [1], [], params, [])
    return SamplingState(sequence, vocab, engine_seed=0)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=usable_cpus(), help="torch threads (default: all usable)")
    parser.add_argument("--repeats", type=int, default=7, help="runs per figure, the best counts (default 7)")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if missing := unavailable():
        parser.exit(1, f"{missing}\n")
    print(f"sampling, {ROWS} rows, {args.threads} threads")
    print(f"{'vocabulary':>10}  {'parameters':22}{'torch ms':>10}{'compiled ms':>13}{'ratio':>8}")
    with torch.inference_mode():
        for vocab in VOCABULARIES:
            logits = 3 * torch.randn(ROWS, vocab, dtype=torch.float32)
            for name, params in PARAMS.items():
                states = [state(row, params, vocab) for row in range(ROWS)]
                samplers = [partial(sampler, logits, states) for sampler in (Sampler(), Sampler(cast(Sample, sample)))]
                torch_ms, own_ms = best(samplers, args.repeats)
                print(f"{vocab:>10}  {name:22}{torch_ms:>10.2f}{own_ms:>13.2f}{torch_ms / own_ms:>7.1f}x")


if __name__ == "__main__":
    main()
