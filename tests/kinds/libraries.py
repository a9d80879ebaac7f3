"""Libraries that some kinds of models need, in a folder of their own: `python -m tests.kinds.libraries FOLDER`.

The compiled parts of torchvision and torchaudio load only beside the build of torch that they were made for.
Transformers uses what is written in Python: the folder holds both packages without compiled parts.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

LIBRARIES = (
    *("torchvision==0.28.0", "torchaudio==2.11.0", "timm==1.0.31", "num2words==0.5.14", "docopt==0.6.2"),
    *("mistral-common==1.13.1", "pydantic-extra-types==2.11.1", "pycountry==26.2.16"),
)
"""Releases that go with torch in `requirements-dev.txt`; of what they depend on, only what is not installed there."""
_SCHEMAS = """

# the schemas of two operators, without their compiled kernels
_schemas = torch.library.Library("torchvision", "FRAGMENT")
_schemas.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
_schemas.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""


def install(folder: Path) -> None:
    """Install the libraries into a folder, from the package index; one that is there is replaced.

    Raises:
        subprocess.CalledProcessError: pip failed, and said why.
    """
    shutil.rmtree(folder, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "install", "--no-compile", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--no-deps", "--target", str(folder), *LIBRARIES], check=True)
    for compiled in (*folder.glob("torchvision/*.so"), *folder.glob("torchaudio/lib/*.so")):
        compiled.unlink()
    with (folder / "torchvision" / "extension.py").open("a", encoding="utf-8") as file:
        file.write(_SCHEMAS)


if __name__ == "__main__":
    install(Path(sys.argv[1]))
