"""Keeps the plugins' wheels as they are now: `python -m tests.compat.keep_wheels`.

They go to `wheels/VERSION/`, by corellm's version, with an index. Later versions of the core are tested with them. The
demo models that some wheels ship are left out: they are large, and not part of the contract. Run it at each release;
`--again` replaces the wheels of a version.
"""

from __future__ import annotations

import argparse
import base64
import csv
import hashlib
import io
import json
import shutil
import sys
import tempfile
from collections.abc import Mapping
from configparser import ConfigParser
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import corellm
from corellm.hookspecs import CONTRACT_VERSION
from corellm.plugin.adapters import CHECKPOINTS_GROUP
from tests.wheels.environments import build_wheels, plugin_projects

KEPT = Path(__file__).with_name("wheels")


def without_checkpoints(wheel: Path, out: Path) -> Path:
    """Write a wheel again, without the checkpoints that it ships: their files, entry points and lines in RECORD."""
    with ZipFile(wheel) as archive:
        contents = {info.filename: archive.read(info) for info in archive.infolist()}
    info_dir = next(name.partition("/")[0] for name in contents if name.endswith(".dist-info/METADATA"))
    entry_points = ConfigParser(delimiters="=")
    entry_points.optionxform = str  # type: ignore[assignment, method-assign]  # architectures keep their capitals
    entry_points.read_string(contents[f"{info_dir}/entry_points.txt"].decode())
    if entry_points.has_section(CHECKPOINTS_GROUP):
        for package in dict(entry_points[CHECKPOINTS_GROUP]).values():
            folder = package.replace(".", "/") + "/"
            contents = {name: content for name, content in contents.items() if not name.startswith(folder)}
        entry_points.remove_section(CHECKPOINTS_GROUP)
        text = io.StringIO()
        entry_points.write(text)
        contents[f"{info_dir}/entry_points.txt"] = text.getvalue().encode()
    contents[f"{info_dir}/RECORD"] = _record(contents, f"{info_dir}/RECORD")
    kept = out / wheel.name
    with ZipFile(kept, "w") as archive:
        for name, content in contents.items():
            archive.writestr(ZipInfo(name), content, ZIP_DEFLATED)  # no date: the same contents make the same wheel
    return kept


def _record(contents: Mapping[str, bytes], own_name: str) -> bytes:
    """The list of a wheel's files with their hashes, as the wheel format has it."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    for name, content in contents.items():
        if name != own_name:
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            lines.writerow([name, f"sha256={digest}", len(content)])
    lines.writerow([own_name, "", ""])
    return text.getvalue().encode()


def keep(out: Path) -> None:
    """Build the plugins and write their wheels and `index.json` into a folder."""
    out.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="corellm-keep-") as work:
        built = build_wheels(Path(work), plugin_projects())
        kept = [without_checkpoints(wheel, out) for wheel in built.values()]
    index = {
        "corellm": corellm.__version__,
        "contract": CONTRACT_VERSION,
        "sha256": {wheel.name: hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in kept},
    }
    (out / "index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    for wheel in kept:
        print(f"{wheel.stat().st_size:>8}  {wheel}")


def main() -> None:
    """Keep this version's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--again", action="store_true", help="replace those that this version has kept")
    again = parser.parse_args().again
    out = KEPT / corellm.__version__
    if out.exists() and not again:
        sys.exit(f"{out} exists; its wheels may be installed by users. --again replaces them")
    shutil.rmtree(out, ignore_errors=True)
    keep(out)


if __name__ == "__main__":
    main()
