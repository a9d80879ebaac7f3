"""Builds every wheel, installs them with `--no-index` into a clean environment, uses them from outside the checkout.

A program, not a pytest file: it takes half a minute and needs an environment of its own. Third-party dependencies are
linked in from the environment that runs it, so nothing is downloaded; ours come from the wheels alone.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OURS = ("corellm", "__editable__", "_corellm", "_editable_impl_corellm")


def run(*command: str | Path, cwd: Path, status: int = 0) -> str:
    """Run a command and give what it printed; anything but the expected exit status ends the check."""
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode != status:
        sys.exit(f"{' '.join(map(str, command))}\nexited {done.returncode}, not {status}:\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def expect(text: str, output: str) -> None:
    """End the check unless the output holds the text."""
    if text not in output:
        sys.exit(f"expected {text!r} in:\n{output}")


def build_wheels(out: Path) -> list[Path]:
    """Build the core and every plugin."""
    for project in (ROOT, *sorted(p.parent for p in ROOT.glob("plugins/*/pyproject.toml"))):
        run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, project, cwd=out)
    return sorted(out.glob("*.whl"))


def make_environment(where: Path) -> Path:
    """A virtual environment that sees the third-party packages of this one and nothing of ours; gives its `bin`."""
    venv.create(where, with_pip=True)
    # the bundled setuptools would hide the newer one that torch asks for
    run(where / "bin" / "python", "-m", "pip", "uninstall", "--yes", "--quiet", "setuptools", cwd=where)
    packages = where / "third-party"
    packages.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith(OURS) and entry.suffix != ".pth":
            (packages / entry.name).symlink_to(entry)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (where / "lib" / version / "site-packages" / "third-party.pth").write_text(f"{packages}\n")
    return where / "bin"


def main() -> None:
    """Build, install, use, uninstall."""
    with tempfile.TemporaryDirectory(prefix="corellm-wheels-") as name:
        work = Path(name)
        wheels = build_wheels(work / "dist") if (work / "dist").mkdir() is None else []
        print("built", ", ".join(wheel.name for wheel in wheels))
        bin_dir = make_environment(work / "env")
        run(bin_dir / "python", "-m", "pip", "install", "--no-index", *wheels, cwd=work)
        run(bin_dir / "python", "-m", "pip", "check", cwd=work)

        location = run(bin_dir / "python", "-c", "import corellm; print(corellm.__file__)", cwd=work)
        expect(str(work / "env"), location)
        expect("LlavaForConditionalGeneration", run(bin_dir / "corellm", "plugins", cwd=work))

        checkpoint = work / "tiny"
        make = f"from corellm_llava.tiny import make_tiny_checkpoint; make_tiny_checkpoint({str(checkpoint)!r})"
        run(bin_dir / "python", "-c", make, cwd=work)
        shutil.copy(next(iter(sorted((ROOT / "demo" / "pictures").glob("*.png")))), work / "picture.png")
        run(bin_dir / "corellm", "run", checkpoint, "picture.png", "What shape?", "--max-tokens", "4", cwd=work)
        answer = run(bin_dir / "corellm", "run", "demo", "picture.png", "Describe the picture.", cwd=work)
        print("corellm run demo:", answer.strip())

        run(bin_dir / "python", "-m", "pip", "uninstall", "--yes", "corellm-llava", cwd=work)
        expect("pip install corellm-llava", run(bin_dir / "corellm", "run", checkpoint, "hello", cwd=work, status=1))
    print("wheels: 1 passed, 0 failed")


if __name__ == "__main__":
    main()
