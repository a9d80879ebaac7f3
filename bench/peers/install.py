"""Makes the environments of the peers: `python -m bench.peers.install [vllm] [openvino] [llama.cpp]`.

Each is a virtual environment of its own, some gigabytes large; nothing of it is a dependency of corellm. llama.cpp is
compiled for this processor, which takes a C++ compiler and some minutes. What is
installed already is left as it is. pip's settings hold: where its index has no builds of torch for CPUs, give one that
has (PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu).
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from bench.peers.environments import CACHE, REQUIREMENTS, Environment

_CHECKS = {
    "vllm": "import vllm", "openvino": "import openvino_genai, optimum.intel.openvino", "llama.cpp": "import llama_cpp",
}  # fmt: skip
_MISSING_OPERATORS = """
import torch
_operators = torch.library.Library("torchvision", "DEF")
_operators.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
_operators.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""


def main() -> int:
    """Install what was asked for; 1 if something could not be."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.peers.install", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="PEER", help=f"which: {', '.join(REQUIREMENTS)} (default: all)")
    parser.add_argument("--cache", type=Path, default=CACHE, help=f"folder for environments (default {CACHE})")
    args = parser.parse_args()
    if unknown := sorted(set(args.names) - set(REQUIREMENTS)):
        parser.error(f"no peer {', '.join(unknown)}; there are {', '.join(REQUIREMENTS)}")
    failed = 0
    for name in args.names or REQUIREMENTS:
        environment = Environment.of(name, args.cache.resolve())
        try:
            install(environment)
        except subprocess.CalledProcessError as error:
            print(f"{name} could not be installed: `{' '.join(map(str, error.cmd))}` ended with {error.returncode}")
            failed = 1
    return failed


def install(environment: Environment) -> None:
    """Make one environment, and check that its engine can be imported.

    Raises:
        CalledProcessError: pip failed, or the engine cannot be imported.
    """
    if environment.missing is None:
        print(f"{environment.name} is installed in {environment.folder}")
        return
    requirements = REQUIREMENTS[environment.name]
    print(f"installing {' '.join(requirements)} into {environment.folder}: some gigabytes, some minutes", flush=True)
    if not environment.python.exists():
        venv.create(environment.folder, with_pip=True)
    pip = [str(environment.python), "-m", "pip", "install", "--disable-pip-version-check"]
    subprocess.run([*pip, *requirements], check=True)
    mend(environment)
    subprocess.run(
        [environment.python, "-c", _CHECKS[environment.name]], check=True, env=environment.variables(), cwd="/"
    )
    environment.ready.write_text("\n".join(requirements), encoding="utf-8")
    print(f"{environment.name} is installed", flush=True)


def mend(environment: Environment) -> None:
    """Put stand-ins before torchvision, torchaudio and torchcodec where their builds do not fit the installed torch.

    Without its compiled parts torchvision does all that image processors need; audio is not measured.
    """
    shutil.rmtree(environment.stand_ins, ignore_errors=True)
    environment.stand_ins.mkdir()
    packages = next(environment.folder.glob("lib/python*/site-packages"))
    for name in ("torchvision", "torchaudio", "torchcodec"):
        if not (packages / name).exists() or _imports(environment, name):
            continue
        print(f"the build of {name} does not fit torch: a stand-in without its compiled parts comes before it")
        target = environment.stand_ins / name
        if name == "torchcodec":
            target.mkdir()
            code = 'raise ImportError("this build of torchcodec does not fit the installed torch")\n'
            (target / "__init__.py").write_text(code, encoding="utf-8")
            continue
        shutil.copytree(packages / name, target, ignore=shutil.ignore_patterns("*.so", "lib", "__pycache__"))
        if name == "torchvision":
            with (target / "extension.py").open("a", encoding="utf-8") as file:
                file.write(_MISSING_OPERATORS)


def _imports(environment: Environment, name: str) -> bool:
    command = [str(environment.python), "-c", f"import torch, {name}"]
    return (
        subprocess.run(command, env=environment.variables(), capture_output=True, check=False, cwd="/").returncode == 0
    )


if __name__ == "__main__":
    sys.exit(main())
