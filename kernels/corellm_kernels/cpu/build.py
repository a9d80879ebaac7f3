"""Compiles the kernels, once for each instruction set: `python -m corellm_kernels.cpu.build`.

With `--sanitize` it makes one library, which checks its own memory accesses and arithmetic.

Knows the compiler and its options; imports nothing but the standard library, so that installing can run it.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCES = Path(__file__).parent / "csrc"
BUILT = Path(__file__).parent / "built"

_AVX512 = ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx2", "-mfma", "-mf16c"]
# Unless loops are aligned, products are up to a tenth slower, depending on the code compiled before them.
_OPTIONS = [
    "-std=c++17", "-O3", "-fno-math-errno", "-fno-trapping-math", "-fno-exceptions", "-fno-rtti", "-fPIC", "-shared",
    "-fvisibility=hidden", "-falign-loops=64", "-Wall", "-Wextra",
]  # fmt: skip


def instruction_sets(machine: str) -> dict[str, list[str]]:
    """Return the compiler's options for each instruction set of an architecture, the best first."""
    if machine in ("x86_64", "AMD64"):
        return {
            "avx512_bf16": [*_AVX512, "-mavx512bf16", "-mavx512vnni"],
            "avx512": _AVX512,
            "avx2": ["-mavx2", "-mfma", "-mf16c"],
            "plain": [],
        }
    return {"plain": []}


def library_path(name: str) -> Path:
    """Return the library of an instruction set."""
    return BUILT / f"kernels-{name}.so"


def version() -> str:
    """Return what the libraries are made of: a digest of the sources and the options."""
    digest = hashlib.sha256(repr([_OPTIONS, instruction_sets(platform.machine())]).encode())
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.name.encode() + source.read_bytes())
    return digest.hexdigest()


def is_current() -> bool:
    """Whether the libraries are there and made of these sources."""
    stamp = BUILT / "version"
    return stamp.is_file() and stamp.read_text(encoding="ascii") == version()


def compiler() -> str | None:
    """Return the C++ compiler: `$CXX`, else `g++` or `clang++`; None if there is none."""
    return os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")


def build() -> str:
    """Compile what is not current. Return one line that says what was done, or why not."""
    sets = instruction_sets(platform.machine())
    missing = [name for name in sets if not (is_current() and library_path(name).is_file())]
    if not missing:
        return "CPU kernels: up to date"
    command = compiler()
    if sys.platform != "linux":
        return f"CPU kernels: not built on {sys.platform}; corellm runs without them, slower"
    if command is None:
        return "CPU kernels: no C++ compiler (g++, clang++ or $CXX); corellm runs without them, slower"
    BUILT.mkdir(exist_ok=True)
    (BUILT / "version").unlink(missing_ok=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        done = dict(
            zip(missing, pool.map(lambda name: _compile(command, library_path(name), sets[name]), missing), strict=True)
        )
    failed = {name: text for name, text in done.items() if text is not None}
    made = [name for name in sets if name not in failed]
    reason = next(iter(failed.values()), "")
    if not made:
        return f"CPU kernels: {command} failed; corellm runs without them, slower: {reason}"
    (BUILT / "version").write_text(version(), encoding="ascii")
    less = f"; {command} failed for {', '.join(failed)}: {reason}" if failed else ""
    return f"CPU kernels: built for {', '.join(made)}{less}"


def _compile(command: str, path: Path, options: list[str]) -> str | None:
    """Compile one library; return the compiler's first error, None if there is none."""
    path.unlink(missing_ok=True)
    made = path.with_suffix(f".{os.getpid()}")  # another process must not load a library that is half written
    try:
        line = [*shlex.split(command), *_OPTIONS, *options, "-o", str(made), str(SOURCES / "kernels.cpp")]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
    except (OSError, ValueError) as error:  # the latter for quotes that do not close
        return str(error)
    if done.returncode == 0 and made.is_file():
        made.replace(path)
        return None
    made.unlink(missing_ok=True)
    first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[:200])
    return first or f"it wrote no library and ended with {done.returncode}"


def build_sanitized(name: str, path: Path) -> str | None:
    """Compile a library with the address and undefined-behaviour sanitizers; return what is wrong, None if nothing."""
    # with checks in unrolled loops, -O3 takes three times as long
    options = [*instruction_sets(platform.machine())[name], "-O2", "-g", "-fno-omit-frame-pointer"]
    return _compile(compiler() or "g++", path, [*options, "-fsanitize=address,undefined", "-fno-sanitize-recover=all"])


def main() -> str | None:
    """Run the command line; return what is wrong, None if nothing."""
    parser = argparse.ArgumentParser(prog="python -m corellm_kernels.cpu.build", description=__doc__)
    sets = ", ".join(instruction_sets(platform.machine()))
    parser.add_argument("--sanitize", nargs=2, metavar=("SET", "FILE"), help=f"make this library; sets are {sets}")
    wanted = parser.parse_args().sanitize
    if wanted is None:
        line = build()
        if not is_current():
            return line
        print(line)
        return None
    if wanted[0] not in instruction_sets(platform.machine()):
        parser.error(f"no instruction set {wanted[0]!r}; there are {sets}")
    return build_sanitized(wanted[0], Path(wanted[1]))


if __name__ == "__main__":
    sys.exit(main())
