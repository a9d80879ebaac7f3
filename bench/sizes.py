"""How much there is to read: lines of code by room, and of each family beside the same family in vLLM.

A plugin's checkpoint maker is not counted; everything else in it is, the processors and models that it brings along.
"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("multimodal", "engine", "worker", "attention", "cli", "testing")


VLLM_LINES = {"llava": 741, "blip2": 707, "qwen_vl": 1875}
"""`wc -l` of the family's model file in vLLM; for `qwen_vl` that of Qwen2-VL alone."""


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


def plugin_files(family: str) -> tuple[list[Path], list[Path]]:
    """A plugin's adapter, and all of its code, which may bring processors that vLLM takes from transformers.

    Not counted: its checkpoint maker, and in `qwen_vl` the original Qwen-VL, a model of its own.
    """
    package = ROOT / "plugins" / family / "src" / f"corellm_{family}"
    files = [p for p in sorted(package.rglob("*.py")) if p.name != "tiny.py" and "original" not in p.parts]
    return [p for p in files if not p.stem.endswith(("processor", "settings"))], files


def main() -> None:
    """Print the tables."""
    core = ROOT / "core" / "corellm"
    print(f"{'lines':26}{'code':>7}{'all':>7}{'files':>7}{'longest':>9}")
    groups = {"core, top": sorted(core.glob("*.py"))}
    groups |= {f"core/{room}": sorted((core / room).rglob("*.py")) for room in ROOMS}
    for plugin in sorted(ROOT.glob("plugins/*/src/*")):
        groups[plugin.name] = [p for p in sorted(plugin.rglob("*.py")) if p.name != "tiny.py"]
    for name, files in groups.items():
        lengths = [len(f.read_text(encoding="utf-8").splitlines()) for f in files]
        code = sum(map(code_lines, files))
        print(f"{name:26}{code:>7}{sum(lengths):>7}{len(files):>7}{max(lengths):>9}")
    print(f"\n{'adapter, all its lines':26}{'ours':>7}{'vLLM':>7}{'ratio':>7}{'whole plugin':>14}")
    for family, theirs in VLLM_LINES.items():
        adapter, plugin = (sum(map(all_lines, files)) for files in plugin_files(family))
        print(f"{family:26}{adapter:>7}{theirs:>7}{adapter / theirs:>7.2f}{plugin:>14}")


if __name__ == "__main__":
    main()
