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
from collections.abc import Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Plugin:
    """One plugin's wheel, and what proves that it runs by itself."""

    distribution: str
    architecture: str
    make: str
    """Python that writes a tiny checkpoint to `checkpoint`."""
    media: str | None
    """File to ask about."""


def _plugin(family: str, architecture: str, media: str, module: str = "tiny", options: str = "") -> Plugin:
    make = f"from corellm_{family}.{module} import make_tiny_checkpoint; make_tiny_checkpoint('checkpoint'{options})"
    return Plugin(f"corellm-{family.replace('_', '-')}", architecture, make, media)


PLUGINS = (
    _plugin("llava", "LlavaForConditionalGeneration", "picture.png"),
    _plugin("fuyu", "FuyuForCausalLM", "picture.png"),
    _plugin("blip2", "Blip2ForConditionalGeneration", "picture.png"),
    _plugin("qwen_vl", "Qwen2VLForConditionalGeneration", "clip.mp4"),
    _plugin("qwen_vl", "QWenLMHeadModel", "picture.png", "original.tiny"),
    _plugin("qwen_audio", "Qwen2AudioForConditionalGeneration", "sound.wav"),
)

MAKE_MEDIA = """
import av, numpy, wave
from PIL import Image
noise = numpy.random.default_rng(0).integers(0, 256, (8, 64, 96, 3), dtype=numpy.uint8)
Image.fromarray(noise[0]).save("picture.png")
with av.open("clip.mp4", "w") as clip:
    stream = clip.add_stream("mpeg4", rate=8)
    stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
    for frame in noise:
        clip.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
    clip.mux(stream.encode(None))
with wave.open("sound.wav", "wb") as sound:
    sound.setparams((1, 2, 8000, 8000, "NONE", ""))
    sound.writeframes(noise.tobytes()[:16000])
"""


def check_alone(plugin: Plugin, wheels: Mapping[str, Path], bin_dir: Path, work: Path) -> None:
    """With no other plugin installed: its checkpoint answers. Without it: the error names what to install."""
    print(f"{plugin.distribution} alone, {plugin.architecture}")
    python = bin_dir / "python"
    run(python, "-m", "pip", "install", "--no-index", "--no-deps", wheels[plugin.distribution], cwd=work)
    run(python, "-m", "pip", "check", cwd=work)
    expect(plugin.architecture, run(bin_dir / "corellm", "plugins", cwd=work))
    shutil.rmtree(work / "checkpoint", ignore_errors=True)
    run(python, "-c", plugin.make, cwd=work)
    words = ["What is this?"] if plugin.media is None else [plugin.media, "What is this?"]
    run(bin_dir / "corellm", "run", "checkpoint", *words, "--max-tokens", "4", cwd=work)
    run(python, "-m", "pip", "uninstall", "--yes", plugin.distribution, cwd=work)
    output = run(bin_dir / "corellm", "run", "checkpoint", "hello", cwd=work, status=1)
    expect(f"no installed plugin serves {plugin.architecture}; install it: pip install {plugin.distribution}", output)


def main() -> None:
    """Build, install, use, uninstall."""
    with tempfile.TemporaryDirectory(prefix="corellm-wheels-") as name:
        work = Path(name)
        (work / "dist").mkdir()
        wheels = {wheel.name.split("-")[0].replace("_", "-"): wheel for wheel in build_wheels(work / "dist")}
        print("built", ", ".join(wheel.name for wheel in wheels.values()))
        bin_dir = make_environment(work / "env")
        run(bin_dir / "python", "-m", "pip", "install", "--no-index", wheels["corellm"], cwd=work)
        run(bin_dir / "python", "-c", MAKE_MEDIA, cwd=work)
        for plugin in PLUGINS:
            check_alone(plugin, wheels, bin_dir, work)

        run(bin_dir / "python", "-m", "pip", "install", "--no-index", *wheels.values(), cwd=work)
        run(bin_dir / "python", "-m", "pip", "check", cwd=work)
        location = run(bin_dir / "python", "-c", "import corellm; print(corellm.__file__)", cwd=work)
        expect(str(work / "env"), location)
        for model, media in (("demo", ROOT / "demo/pictures/407.png"), ("demo-video", work / "clip.mp4")):
            answer = run(bin_dir / "corellm", "run", model, media, "Describe it.", cwd=work)
            print(f"corellm run {model}:", answer.strip())
    print("wheels: 1 passed, 0 failed")


if __name__ == "__main__":
    main()
