"""How much there is to read: lines of code by room, and of each adapter (its checkpoint maker not counted)."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("multimodal", "engine", "worker", "attention", "cli", "testing")


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


def main() -> None:
    """Print a table."""
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


if __name__ == "__main__":
    main()
