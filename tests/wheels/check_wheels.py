"""Builds every wheel and uses each plugin's from outside the checkout, in a clean environment with what it asks for.

A program, not a pytest file: it takes a minute and needs environments of its own. An environment holds a plugin's wheel
and what its metadata require, directly or not, extras and markers considered: ours from the wheels, everything else
linked in from the environment that runs this, so nothing is downloaded. What a plugin uses and does not declare is
missing there.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
import wave
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path

import av
import numpy as np
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
Wheels = Mapping[str, Path]


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


def build_wheels(out: Path) -> Wheels:
    """Build the core and every plugin; `{distribution: wheel}`."""
    for project in (ROOT, *sorted(p.parent for p in ROOT.glob("plugins/*/pyproject.toml"))):
        run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, project, cwd=out)
    return {canonicalize_name(wheel.name.split("-")[0]): wheel for wheel in sorted(out.glob("*.whl"))}


def make_media(where: Path) -> None:
    """Write `picture.png`, `clip.mp4` and `sound.wav`: noise."""
    noise = np.random.default_rng(0).integers(0, 256, (8, 64, 96, 3), dtype=np.uint8)
    Image.fromarray(noise[0]).save(where / "picture.png")
    with av.open(where / "clip.mp4", "w") as clip:
        stream = clip.add_stream("mpeg4", rate=8)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        for frame in noise:
            clip.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        clip.mux(stream.encode(None))
    with wave.open(str(where / "sound.wav"), "wb") as sound:
        sound.setparams((1, 2, 8000, 8000, "NONE", ""))
        sound.writeframes(noise.tobytes()[:16000])


# --- environments ---------------------------------------------------------------------------------------------------


def required(names: Iterable[str], wheels: Wheels) -> dict[str, Distribution]:
    """The named distributions and all that they ask for, `{name: distribution}`: ours as the wheels have them."""
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [Requirement(name) for name in names]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name not in found:
            own = distributions(path=[str(wheels[name])]) if name in wheels else [distribution(name)]
            found[name] = next(iter(own))
        for extra in {"", *requirement.extras}:
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            further = map(Requirement, found[name].requires or ())
            waiting += [r for r in further if r.marker is None or r.marker.evaluate({"extra": extra})]
    return found


def link(package: Distribution, site_packages: Path) -> None:
    """Link what a distribution has at the top: packages, modules, folders of libraries, metadata."""
    entries = {file.parts[0] for file in package.files or ()} - {"..", "__pycache__"}
    for entry in entries:
        if not (site_packages / entry).exists():  # distributions may share a namespace
            (site_packages / entry).symlink_to(str(package.locate_file(entry)))


@dataclass(frozen=True)
class Environment:
    """A virtual environment, used from its own folder, and the media beside it."""

    root: Path

    @property
    def bin(self) -> Path:
        """Where its programs are."""
        return self.root / "bin"

    def media(self, name: str) -> Path:
        """A file of `make_media`."""
        return self.root.parent / name

    def python(self, *arguments: str | Path, status: int = 0) -> str:
        """Run its interpreter."""
        return run(self.bin / "python", *arguments, cwd=self.root, status=status)

    def corellm(self, *arguments: str | Path, status: int = 0) -> str:
        """Run its `corellm`."""
        return run(self.bin / "corellm", *arguments, cwd=self.root, status=status)

    def pip(self, *arguments: str | Path) -> str:
        """Run the pip of the environment that runs this on it: it has none itself."""
        return run(sys.executable, "-m", "pip", "--python", self.bin / "python", *arguments, cwd=self.root)


def make_environment(where: Path, names: Iterable[str], wheels: Wheels) -> Environment:
    """An environment with the named distributions of ours and what they ask for, nothing else."""
    venv.create(where)
    site_packages = Path(sysconfig.get_path("purelib", vars={"base": str(where)}))
    packages = required(names, wheels)
    if "corellm" not in packages:
        sys.exit(f"{', '.join(names)}: does not ask for corellm")
    for name, package in packages.items():
        if name not in wheels:
            link(package, site_packages)
    environment = Environment(where)
    environment.pip("install", "--no-index", "--no-deps", *(wheels[name] for name in packages if name in wheels))
    environment.pip("check")
    return environment


# --- checks ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Model:
    """What proves that an architecture runs: a tiny checkpoint and a file to ask about."""

    architecture: str
    module: str
    """Its `make_tiny_checkpoint` makes the checkpoint."""
    media: str


PLUGINS = {
    "corellm-llava": [Model("LlavaForConditionalGeneration", "corellm_llava.tiny", "picture.png")],
    "corellm-fuyu": [Model("FuyuForCausalLM", "corellm_fuyu.tiny", "picture.png")],
    "corellm-blip2": [Model("Blip2ForConditionalGeneration", "corellm_blip2.tiny", "picture.png")],
    "corellm-qwen-vl": [
        Model("QWenLMHeadModel", "corellm_qwen_vl.original.tiny", "picture.png"),
        Model("Qwen2VLForConditionalGeneration", "corellm_qwen_vl.tiny", "clip.mp4"),
    ],
    "corellm-qwen-audio": [Model("Qwen2AudioForConditionalGeneration", "corellm_qwen_audio.tiny", "sound.wav")],
}


def check_alone(plugin: str, work: Path, wheels: Wheels) -> None:
    """With no other plugin installed: its checkpoints answer. Without it: the error names what to install."""
    environment = make_environment(work / plugin, [plugin], wheels)
    listed = environment.corellm("plugins")
    for model in PLUGINS[plugin]:
        expect(model.architecture, listed)
        shutil.rmtree(environment.root / "checkpoint", ignore_errors=True)
        environment.python("-c", f"from {model.module} import make_tiny_checkpoint as m; m('checkpoint')")
        environment.corellm("run", "checkpoint", environment.media(model.media), "What is this?", "--max-tokens", "4")
        print(f"{plugin} alone, {model.architecture}", flush=True)
    if plugin == "corellm-llava":
        check_without_extras(environment)
    environment.pip("uninstall", "--yes", plugin)
    output = environment.corellm("run", "checkpoint", "hello", status=1)
    expect(f"no installed plugin serves {model.architecture}; install it: pip install {plugin}", output)


def check_without_extras(environment: Environment) -> None:
    """A plugin for pictures brings nothing for clips and sounds; asked for one, the error names what to install."""
    for module in ("av", "soundfile", "soxr", "librosa"):
        expect(f"No module named '{module}'", environment.python("-c", f"import {module}", status=1))
    for media, extra in (("clip.mp4", "corellm[video]"), ("sound.wav", "corellm[audio]")):
        output = environment.corellm("run", "checkpoint", environment.media(media), "What is this?", status=1)
        expect(f"pip install '{extra}'", output)
        if "Traceback" in output:
            sys.exit(f"{media} ended in a traceback:\n{output}")


def check_together(work: Path, wheels: Wheels) -> None:
    """All installed, ours from the environment and not from the checkout; the demo models answer."""
    environment = make_environment(work / "together", wheels, wheels)
    location = environment.python("-c", "import corellm; print(corellm.__file__)")
    expect(str(environment.root), location)
    for model, media in (("demo", ROOT / "demo/pictures/407.png"), ("demo-video", environment.media("clip.mp4"))):
        print(f"corellm run {model}:", environment.corellm("run", model, media, "Describe it.").strip(), flush=True)


def main() -> None:
    """Build, install, use, uninstall."""
    with tempfile.TemporaryDirectory(prefix="corellm-wheels-") as name:
        work = Path(name)
        (work / "dist").mkdir()
        wheels = build_wheels(work / "dist")
        print("built", ", ".join(wheel.name for wheel in wheels.values()), flush=True)
        if unchecked := set(wheels) - {"corellm", *PLUGINS}:
            sys.exit(f"PLUGINS lacks {', '.join(sorted(unchecked))}")
        make_media(work)
        with ThreadPoolExecutor(max_workers=2) as pool:
            checks = [pool.submit(check_alone, plugin, work, wheels) for plugin in PLUGINS]
            checks.append(pool.submit(check_together, work, wheels))
            for check in checks:
                check.result()
    print("wheels: all as they should be")


if __name__ == "__main__":
    main()
