"""How much there is to read: lines by room and plugin, and of three families beside the same families in vLLM.

What is counted where stands below the tables. Makers of tiny checkpoints, which are for tests, are counted nowhere.
"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("multimodal", "engine", "worker", "attention", "cli", "testing")

VLLM_LINES = {"llava": 741, "blip2": 707, "qwen_vl": 1875}
"""`wc -l` of the family's model file in vLLM, counted once; for `qwen_vl` that of Qwen2-VL alone."""

LEGEND = """\
Every line counts, comments and blank ones too. adapter: the hooks. plugin: those, and the processors it brings along.
Left out of both: {original} lines of qwen_vl/original, a model of its own, which vLLM has in another file.
The files are not alike. vLLM's hold what we take from transformers: projector (llava), Q-Former (blip2), vision tower
(qwen_vl). Its processing of video it takes from transformers, where we have our own. Its qwen_vl is Qwen2-VL alone,
ours is Qwen2.5-VL and Qwen3-VL, too. vLLM's figures were counted once; of which version has not been noted."""


def code_lines(path: Path) -> int:
    """Lines that are neither blank, nor comment, nor docstring."""
    text = path.read_text(encoding="utf-8")
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    skipped: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        for child in node.body if isinstance(node, documented) else ():
            if (
                isinstance(child, ast.Expr)
                and isinstance(child.value, ast.Constant)
                and isinstance(child.value.value, str)
            ):
                assert child.end_lineno is not None
                skipped.update(range(child.lineno, child.end_lineno + 1))
    lines = enumerate(text.splitlines(), 1)
    return sum(bool(line.strip()) and not line.lstrip().startswith("#") and i not in skipped for i, line in lines)


def all_lines(path: Path) -> int:
    """Every line, as `wc -l` counts them."""
    return len(path.read_text(encoding="utf-8").splitlines())


def sources(folder: Path) -> list[Path]:
    """The Python files below a folder, except makers of tiny checkpoints."""
    return [path for path in sorted(folder.rglob("*.py")) if path.name != "tiny.py"]


def print_comparison() -> None:
    """Each family's lines, as adapter and as plugin, beside those of vLLM."""
    print(f"\n{'family, all lines':26}{'vLLM':>7}{'adapter':>9}{'ratio':>7}{'plugin':>9}{'ratio':>7}")
    num_original = 0
    for family, theirs in VLLM_LINES.items():
        files = sources(ROOT / "plugins" / family / "src" / f"corellm_{family}")
        original = [path for path in files if "original" in path.parts]
        plugin = [path for path in files if path not in original]
        adapter = [path for path in plugin if not path.stem.endswith(("processor", "settings"))]
        num_original += sum(map(all_lines, original))
        small, large = (sum(map(all_lines, paths)) for paths in (adapter, plugin))
        print(f"{family:26}{theirs:>7}{small:>9}{small / theirs:>7.2f}{large:>9}{large / theirs:>7.2f}")
    print(LEGEND.format(original=num_original))


def main() -> None:
    """Print both tables."""
    core = ROOT / "core" / "corellm"
    print(f"{'lines':26}{'code':>7}{'all':>7}{'files':>7}{'longest':>9}")
    groups = {"core, top": sorted(core.glob("*.py"))}
    groups |= {f"core/{room}": sorted((core / room).rglob("*.py")) for room in ROOMS}
    for plugin in sorted(ROOT.glob("plugins/*/src/*")):
        groups[plugin.name] = sources(plugin)
    for name, files in groups.items():
        lengths = [all_lines(file) for file in files]
        code = sum(map(code_lines, files))
        print(f"{name:26}{code:>7}{sum(lengths):>7}{len(files):>7}{max(lengths):>9}")
    print_comparison()


if __name__ == "__main__":
    main()
