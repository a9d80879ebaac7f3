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


def adapter_files(family: str) -> list[Path]:
    """A plugin's own code: not its checkpoint maker, and of `qwen_vl` not the original Qwen-VL, a model of its own."""
    package = ROOT / "plugins" / family / "src" / f"corellm_{family}"
    return [p for p in sorted(package.rglob("*.py")) if p.name != "tiny.py" and "original" not in p.parts]


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
    print(f"\n{'adapter, all its lines':26}{'ours':>7}{'vLLM':>7}{'ratio':>7}")
    for family, theirs in VLLM_LINES.items():
        ours = sum(len(f.read_text(encoding="utf-8").splitlines()) for f in adapter_files(family))
        print(f"{family:26}{ours:>7}{theirs:>7}{ours / theirs:>7.2f}")


if __name__ == "__main__":
    main()
