"""How a machine is divided among engines: whole cores, those of one NUMA node together, and GPUs.

Knows processors by Linux's numbers and names of devices; knows no engine.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable
from itertools import pairwise
from pathlib import Path

from corellm.errors import ConfigError
from corellm.serving import Share
from corellm.system.process import usable_cpus

_SYSTEM = Path("/sys/devices/system")


def shares_of(number: int, system: Path = _SYSTEM) -> list[Share]:
    """Parts of the processors that this process may use.

    Args:
        number: of engines.
        system: where Linux tells of its processors.

    Raises:
        ConfigError: there are fewer processors.
    """
    cpus = in_order(os.sched_getaffinity(0), system)
    usable = usable_cpus()
    if number > usable:
        raise ConfigError(
            f"data_parallel_size, of all models together, is {number}: this process may use {usable} processors, and "
            f"each engine needs one; set at most {usable}"
        )
    bounds = [round(len(cpus) * part / number) for part in range(number + 1)]
    threads = [usable * (part + 1) // number - usable * part // number for part in range(number)]
    return [
        Share(part, number, frozenset(cpus[begin:end]), min(threads[part], end - begin))
        for part, (begin, end) in enumerate(pairwise(bounds))
    ]


def in_order(cpus: Collection[int], system: Path = _SYSTEM) -> list[int]:
    """Processors by node, core and number: neighbours share memory and caches."""
    node_of = {
        cpu: int(folder.name.removeprefix("node"))
        for folder in sorted((system / "node").glob("node[0-9]*"))
        for cpu in _listed((folder / "cpulist").read_text())
    }

    def place(cpu: int) -> tuple[int, int, int]:
        siblings = system / "cpu" / f"cpu{cpu}" / "topology" / "thread_siblings_list"
        first = min(_listed(siblings.read_text()), default=cpu) if siblings.exists() else cpu
        return node_of.get(cpu, 0), first, cpu

    return sorted(cpus, key=place)


def devices_of(number: int, device: str) -> list[str]:
    """The device of each engine: the CPU for all, or a GPU each.

    Raises:
        ConfigError: there are fewer GPUs, or one of them was chosen.
    """
    if device == "cpu":
        return ["cpu"] * number
    import torch

    gpus = torch.cuda.device_count()
    if device == "auto" and not gpus:
        return ["cpu"] * number
    if device not in ("auto", "cuda"):
        raise ConfigError(
            f"device={device!r:.100} is one device, and data_parallel_size={number} takes as many; give cuda, or which "
            "of them in CUDA_VISIBLE_DEVICES"
        )
    if number > gpus:
        raise ConfigError(f"data_parallel_size={number}: torch sees {gpus} GPUs; at most one engine each")
    return [f"cuda:{gpu}" for gpu in range(number)]


def _listed(text: str) -> Iterable[int]:
    """The numbers of a list like `0-3,8`."""
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
        yield from range(int(first), int(last or first) + 1)
