"""No test asserts how long something took or how much memory the process has, but those marked `full` or `browser`.

Such a test fails on a busy machine, with right code. Count calls, bytes or events instead; wait for what happens, with
a limit of ten minutes or more that only ends a test that hangs.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CLOCKS = {"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time", "thread_time"}
MEMORY = {"getrusage", "get_traced_memory", "memory_info", "memory_full_info", "kilobytes", "ru_maxrss", "rss"}
PROC = re.compile(r"Vm(RSS|HWM|Size|Peak)|/proc/self/(statm|smaps)")
NUMBERS = {"min", "max", "sum", "abs", "round", "int", "float", "all", "any", "sorted", "list", "zip"}
WAITS = {"wait", "wait_for", "join", "result", "communicate"}
LIMITED = {*WAITS, "run", "Client", "AsyncClient", "create_connection"}
"""What takes `timeout=`."""
SHORTEST = 600
"""Seconds of a limit that only ends a test that hangs."""
ALLOWED = {
    (
        "extensions/server/tests/test_process_faults.py",
        "within",
    ): "of the promised seconds at full scale, else of two minutes",
    ("extensions/server/tests/test_media_fuzz.py", "test_damaged_media"): "measures at full scale alone",
    ("extensions/structured/tests/proof/calls.py", "run"): "of `make forms` alone",
    ("extensions/structured/tests/proof/hostile.py", "run"): "of `make forms` alone",
    ("extensions/structured/tests/proof/hostile.py", "send"): "of `make forms` alone",
    ("tests/test_async_llm.py", "test_a_request_arrives_before_its_prompt_is_prepared"): "the order of moments",
}


def is_measured(node: ast.AST, names: set[str]) -> bool:
    """Whether an expression is a duration or the process's memory; `names` are variables and functions that give one.

    What another function is given does not count, as it gives something else.
    """
    if isinstance(node, ast.Call) and not (isinstance(node.func, ast.Name) and node.func.id in NUMBERS):
        given = [*node.args, *(keyword.value for keyword in node.keywords)]
        is_of_proc = any(isinstance(one, ast.Constant) and PROC.search(str(one.value)) for one in given)
        return is_of_proc or is_measured(node.func, names)
    if isinstance(node, ast.Name):
        return node.id in names | CLOCKS | MEMORY
    if isinstance(node, ast.Attribute) and (node.attr in CLOCKS | MEMORY or ast.unparse(node) == "time.time"):
        return True
    return any(is_measured(child, names) for child in ast.iter_child_nodes(node))


def measured_names(function: ast.AST, known: set[str]) -> set[str]:
    """Variables of a function that are measured, beside the names that are `known`."""
    names, before = set(known), -1
    while len(names) > before:
        before = len(names)
        for node in ast.walk(function):
            given: list[ast.expr] = []
            targets: list[ast.expr] = []
            if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr)) and node.value is not None:
                given, targets = [node.value], node.targets if isinstance(node, ast.Assign) else [node.target]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "append":
                given, targets = node.args, [node.func.value]
            if any(is_measured(value, names) for value in given):
                names |= {part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)}
    return names


def measuring_functions(functions: Sequence[ast.FunctionDef | ast.AsyncFunctionDef]) -> set[str]:
    """Names of functions that return what is measured, directly or by another one."""
    known, before = set[str](), -1
    while len(known) > before:
        before = len(known)
        for function in functions:
            names = measured_names(function, known)
            returned = [part.value for part in ast.walk(function) if isinstance(part, ast.Return) and part.value]
            known |= {function.name for value in returned if is_measured(value, names)}
    return known


def is_marked(function: ast.AST) -> bool:
    """Whether a test runs only where it is asked for."""
    marks = {ast.unparse(mark) for mark in getattr(function, "decorator_list", [])}
    return bool({"pytest.mark.full", "pytest.mark.browser"} & marks)


def ends_a_hang(check: ast.expr, function: ast.AST) -> bool:
    """Whether it is `time.monotonic() < deadline`, with a deadline that is far off, or that of the caller."""
    if ast.unparse(check) != "time.monotonic() < deadline":
        return False
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "deadline":
            seconds = node.value.right if isinstance(node.value, ast.BinOp) else node.value
            if isinstance(seconds, ast.Constant):
                return isinstance(seconds.value, (int, float)) and seconds.value >= SHORTEST
            return isinstance(seconds, ast.Name)
    return False


def short_waits(node: ast.AST) -> Iterator[ast.Call]:
    """Waits that end too soon on a busy machine; where an exception is expected, they may."""
    if isinstance(node, ast.With) and any("raises" in ast.unparse(item) for item in node.items):
        return
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LIMITED:
        places = node.args if node.func.attr in WAITS else []
        for given in (*places, *(keyword.value for keyword in node.keywords if keyword.arg == "timeout")):
            if isinstance(given, ast.Constant) and type(given.value) in (int, float) and given.value < SHORTEST:
                yield node
    for child in ast.iter_child_nodes(node):
        yield from short_waits(child)


def timed(source: str) -> Iterator[tuple[str, str]]:
    """`(function, what is wrong)` of a file."""
    tree = ast.parse(source)
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    known = measuring_functions([node for node in functions if not node.name.startswith("test_")])
    inside = {id(part) for node in functions for part in ast.walk(node) if part is not node}
    for function in functions:
        if id(function) in inside or is_marked(function):
            continue
        names = measured_names(function, known)
        for node in ast.walk(function):
            if isinstance(node, ast.Assert) and is_measured(node.test, names) and not ends_a_hang(node.test, function):
                yield function.name, f"line {node.lineno}: assert {ast.unparse(node.test)}"
        for call in short_waits(function):
            yield function.name, f"line {call.lineno}: waits for less than {SHORTEST} s: {ast.unparse(call)}"


def files() -> list[Path]:
    """The files of all tests."""
    return sorted(
        [*ROOT.glob("tests/**/*.py"), *ROOT.glob("plugins/*/tests/**/*.py"), *ROOT.glob("extensions/*/tests/**/*.py")]
    )


def test_none_is_timed() -> None:
    """Nor measures the process; exceptions are listed, with their reason."""
    found = {
        (file.relative_to(ROOT).as_posix(), name): said
        for file in files()
        for name, said in timed(file.read_text(encoding="utf-8"))
    }
    assert {place: said for place, said in found.items() if place not in ALLOWED} == {}
    assert ALLOWED.keys() <= found.keys()


@pytest.mark.parametrize(
    "line",
    [
        "start = time.monotonic(); run(); assert time.monotonic() - start < 5",
        "start = time.monotonic(); run(); took = time.monotonic() - start; assert took < 5",
        "times.append(time.process_time()); assert times[-1] < 5",
        "assert elapsed() < 5",
        "assert psutil.Process().memory_info().rss < 1 << 30",
        "before = status('VmRSS'); run(); assert status('VmRSS') < before + 4000",
        "deadline = time.monotonic() + 5\n    while not run(): assert time.monotonic() < deadline",
        "thread.join(5)",
        "process.wait(timeout=0.5)",
        "subprocess.run(command, timeout=300)",
    ],
)
def test_what_is_timed_is_seen(line: str) -> None:
    """In each form that tests had."""
    helper = "def elapsed():\n    return time.perf_counter() - START\n"
    test = f"def test_any():\n    {line}\n"
    assert len(list(timed(helper + test))) == 1
    assert not list(timed(helper + "@pytest.mark.full\n" + test))


@pytest.mark.parametrize(
    "line",
    [
        "deadline = time.monotonic() + 600\n    while not run(): assert time.monotonic() < deadline",
        "thread.join(600)",
        "with pytest.raises(TimeoutError): wait_for(asyncio.wait_for(run(), 0.1))",
        "start = time.monotonic(); run(); print(time.monotonic() - start); assert calls == 3",
    ],
)
def test_what_is_not_timed_is_not_seen(line: str) -> None:
    """Limits that only end a test that hangs, and times that are told."""
    assert not list(timed(f"def test_any():\n    {line}\n"))
