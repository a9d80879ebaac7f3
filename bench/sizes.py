"""How much there is to read: lines by room, plugin and extension, classes, what features take, families beside vLLM.

Rooms and plugins are those that the folders have. What is counted stands below the tables.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median

from corellm import hookspecs
from corellm.plugin.hookset import HookSet

ROOT = Path(__file__).resolve().parents[1]

VLLM_LINES = {"llava": 741, "blip2": 707, "qwen_vl": 1875}
"""`wc -l` of the family's model file in vLLM, counted once; for `qwen_vl` that of Qwen2-VL alone."""

NAMES = {
    "encoder-decoders": r"(?i)encoder[- _]?decoder|encoder_?prompt|encoder_?states|max_states|num_states|"
    r"cross_?attend|cross_?attention",
    "spans": r"\b[Ss]pans?\b|_spans?\b|\bspans?_",
    "blocks of windows": r"(?i)window_?blocks|window_layers|(?<!re)placed_|(?-i:\bWindows\b)|parts\.windows",
    "recurrent states": r"(?i)recurrent",
    "pooling": r"(?i)pooling|pooler",
}
"""Words by which a file of the core names a feature."""

LEGEND = """\
Every line counts, comments and blank ones too; here, makers of tiny checkpoints do not.
adapter: the hooks. plugin: those, and the processors it brings along.
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
    """The Python files below a folder."""
    return sorted(folder.rglob("*.py"))


def rooms() -> dict[str, list[Path]]:
    """The library's files by room: the core's folders and what stands beside them, kernels, extensions, plugins."""
    core = ROOT / "core" / "corellm"
    found = {"core, top": sorted(core.glob("*.py"))}
    for folder in [
        *core.iterdir(),
        *ROOT.glob("kernels/*/"),
        *ROOT.glob("extensions/*/src/*/"),
        *ROOT.glob("plugins/*/src/*/"),
    ]:
        if files := sources(folder):
            found[str(folder.relative_to(ROOT)).replace("/src/", "/")] = files
    return dict(sorted(found.items()))


def functions(files: Iterable[Path]) -> list[tuple[int, str]]:
    """`(lines, where)` of each function, its decorators and docstring left out."""
    found = []
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                size = _extent(node)
                if ast.get_docstring(node):
                    size -= _extent(node.body[0])
                found.append((size, f"{file.relative_to(ROOT)}:{node.name}"))
    return found


def _extent(node: ast.stmt) -> int:
    """Lines of a statement."""
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1


def print_core() -> None:
    """Lines, classes and rooms of the core, and how many of its files name each feature."""
    texts = {file: file.read_text(encoding="utf-8") for file in sources(ROOT / "core" / "corellm")}
    classes = sum(isinstance(node, ast.ClassDef) for text in texts.values() for node in ast.walk(ast.parse(text)))
    rooms = len({file.parent for file in texts})
    print(f"\nthe core: {sum(map(all_lines, texts))} lines, {classes} classes, {len(texts)} files in {rooms} rooms")
    for feature, words in NAMES.items():
        print(f"files of the core that name {feature}: {sum(bool(re.search(words, text)) for text in texts.values())}")


def print_comparison() -> None:
    """Each family's lines, as adapter and as plugin, beside those of vLLM."""
    print(f"\n{'family, all lines':26}{'vLLM':>7}{'adapter':>9}{'ratio':>7}{'plugin':>9}{'ratio':>7}")
    num_original = 0
    for family, theirs in VLLM_LINES.items():
        folder = ROOT / "plugins" / family / "src" / f"corellm_{family}"
        files = [path for path in sources(folder) if path.name != "tiny.py"]
        original = [path for path in files if "original" in path.parts]
        plugin = [path for path in files if path not in original]
        adapter = [path for path in plugin if not path.stem.endswith(("processor", "settings"))]
        num_original += sum(map(all_lines, original))
        small, large = (sum(map(all_lines, paths)) for paths in (adapter, plugin))
        print(f"{family:26}{theirs:>7}{small:>9}{small / theirs:>7.2f}{large:>9}{large / theirs:>7.2f}")
    print(LEGEND.format(original=num_original))


def print_row(name: str, files: Sequence[Path]) -> None:
    """Lines of one room."""
    lengths = [all_lines(file) for file in files]
    print(f"{name:32}{sum(map(code_lines, files)):>7}{sum(lengths):>7}{len(files):>7}{max(lengths):>9}")


def main() -> None:
    """Print all tables."""
    found = rooms()
    library = [file for files in found.values() for file in files]
    print(f"{'lines':32}{'code':>7}{'all':>7}{'files':>7}{'longest':>9}")
    for name, files in found.items():
        print_row(name, files)
    print_row("library", library)
    lengths = functions(library)
    typical, (most, where) = median(size for size, _ in lengths), max(lengths)
    print(f"\nlines of a function, its docstring left out: median {typical:g}, most {most} ({where})")
    hooks = HookSet(hookspecs).names
    print(f"hooks an adapter must write: {len(hookspecs.REQUIRED_HOOKS)}; may write: {len(hooks)}")
    print_core()
    print_comparison()


if __name__ == "__main__":
    main()
