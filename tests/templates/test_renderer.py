"""A template that does not end, or writes without end, costs its own request, and that within seconds."""

from __future__ import annotations

import copy
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from corellm.children import child as child_module
from corellm.children.child import Child
from corellm.errors import ProcessingError, PromptError
from corellm.templates.renderer import TemplateRenderer

pytestmark = pytest.mark.fresh_starts
LOOPS = "".join("{% for _ in range(99999) %}" for _ in range(9)) + "".join("{% endfor %}" for _ in range(9))
DOUBLING = "{% set ns = namespace(x='0123456789') %}{% for _ in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}"
WRITING = "{% for _ in range(99999) %}{{ 'a' * 1000 }}{% endfor %}"
IN_C = "{{ ('9' * 400000) | int }}{{ (9 ** 999999) ** 9 }}"


@pytest.fixture
def renderer() -> Any:
    """One that has the time of a busy machine."""
    made = TemplateRenderer(seconds=60.0)
    yield made
    made.close()


def hasty(renderer: TemplateRenderer) -> TemplateRenderer:
    """The same children, for a second."""
    other = copy.copy(renderer)
    other._seconds = 1.0
    return other


def ask(renderer: TemplateRenderer, template: str, **variables: Any) -> str:
    with renderer.session() as render:
        return render(template, variables)


def children() -> set[int]:
    """Processes of this test that are not ended."""
    command = ["ps", "-o", "pid=,stat=,comm=", "--ppid", str(os.getpid())]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return {int(pid) for pid, stat, name in map(str.split, lines) if "Z" not in stat and name != "ps"}


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (LOOPS, "within 1 s"),
        (IN_C, "within 1 s"),
        (DOUBLING + "{{ ns.x }}", "too much memory|within 1 s"),
        ("{{ 'a' * 10 ** 11 }}", "too much memory"),
        (WRITING, "33554432 characters"),
        ("{{ raise_exception('a' * 100000) }}", "conversation: a{100}"),
    ],
    ids=["nested loops", "one endless operation", "doubling", "one string", "output", "a long refusal"],
)
def test_hostile_templates(renderer: TemplateRenderer, template: str, words: str) -> None:
    """Each is a PromptError of bounded length, soon; the next request succeeds."""
    ends = "within 1 s" in words
    with pytest.raises(PromptError, match=words) as caught:
        ask(hasty(renderer) if ends else renderer, template)
    assert len(str(caught.value)) < 1000
    assert ask(renderer, "{{ x }}", x="é\ud800") == "é\ud800"


def test_what_cannot_be_sent(renderer: TemplateRenderer) -> None:
    """Variables that are not JSON are a PromptError, and the child stays."""
    assert ask(renderer, "{{ x }}", x=1) == "1"
    nested: list[object] = []
    for _ in range(100_000):
        nested = [nested]
    for value, reason in ((10**5000, "Exceeds the limit"), (nested, "maximum recursion"), (object(), "not JSON")):
        with pytest.raises(PromptError, match=f"conversation: .*{reason}"):
            ask(renderer, "{{ x }}", x=value)
    assert ask(renderer, "{{ x }}", x=2) == "2"


def test_the_time_is_the_conversations(renderer: TemplateRenderer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not each template's: what earlier ones took is no more there for the next."""
    seconds: list[float] = []
    monkeypatch.setattr(Child, "call", lambda child, request, left: seconds.append(left))
    clock = itertools.count(100.0, 10.0)
    monkeypatch.setattr("corellm.templates.renderer.time", SimpleNamespace(monotonic=lambda: next(clock)))
    with renderer.session() as render:
        for _ in range(3):
            render("a", {})
    with renderer.session() as render:
        render("a", {})
    assert seconds == [50.0, 40.0, 30.0, 50.0]


def test_one_that_hangs_does_not_hold_up_others(renderer: TemplateRenderer) -> None:
    """A second child renders meanwhile; any number of threads may render."""
    slow = TemplateRenderer(seconds=300, patience=300)

    def hang() -> None:
        with pytest.raises(ProcessingError):
            ask(slow, LOOPS)

    hanging = threading.Thread(target=hang)
    hanging.start()
    try:
        got: list[str] = []
        threads = [threading.Thread(target=lambda i=i: got.append(ask(slow, "{{ i }}", i=i))) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(600)
        assert sorted(got) == [str(i) for i in range(8)]
        assert hanging.is_alive()
    finally:
        slow.close()
        hanging.join(600)
    assert not hanging.is_alive()


def test_those_that_hang_make_way_for_others() -> None:
    """With a template that does not end in both children, and more of them waiting, another conversation is rendered;
    they are refused long before their own time.
    """
    slow = TemplateRenderer(seconds=600, patience=0.1)
    errors: list[str] = []

    def hang() -> None:
        with pytest.raises((PromptError, ProcessingError)) as caught:  # the latter of those that are left at the end
            ask(slow, LOOPS)
        errors.append(str(caught.value))

    hanging = [threading.Thread(target=hang) for _ in range(4)]
    for thread in hanging:
        thread.start()
    while sum(child.busy_since is not None for child in slow._children._children) < 2:
        time.sleep(0.01)
    assert ask(slow, "{{ i }}", i=1) == "1"
    asking = [threading.Thread(target=ask, args=(slow, "a")) for _ in range(2)]
    for thread in asking:  # the last ones make way for these
        thread.start()
    for thread in asking:
        thread.join()
    slow.close()
    for thread in hanging:
        thread.join(600)
    assert sum("while others wait" in error for error in errors) >= 2


@pytest.mark.parametrize("deaths", [1, 2])
def test_a_child_that_dies_while_it_starts_is_tried_once_more(
    renderer: TemplateRenderer, monkeypatch: pytest.MonkeyPatch, deaths: int
) -> None:
    """As when the system has little memory for a moment; what dies again is an error."""
    real, left = child_module._Running, [deaths]

    def running(module: str, *arguments: str) -> Any:
        made = real(module, *arguments)
        if left[0]:
            left[0] -= 1
            made.process.kill()
        return made

    monkeypatch.setattr(child_module, "_Running", running)
    if deaths == 1:
        assert ask(renderer, "a") == "a"
    else:
        with pytest.raises(ProcessingError, match="status -9"):
            ask(renderer, "a")
    assert left == [0]


def test_a_killed_child_is_replaced(renderer: TemplateRenderer) -> None:
    """However it died, the next request starts another. No child outlives its renderer."""
    before = children()
    assert ask(renderer, "a") == "a"
    (child,) = children() - before
    os.kill(child, signal.SIGKILL)
    while child in children():
        time.sleep(0.01)
    assert ask(renderer, "b") == "b"
    assert len(children() - before) == 1
    renderer.close()
    assert children() == before
    forgotten = TemplateRenderer()
    assert ask(forgotten, "c") == "c"
    del forgotten
    assert children() == before


def test_an_interrupt_leaves_it_usable(renderer: TemplateRenderer, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception while the result is awaited: that result is not taken for the next one."""
    assert ask(renderer, "warm") == "warm"
    from corellm.children import frames

    read = frames.read

    def interrupted(receive: Callable[[int], bytes], max_bytes: int) -> Any:
        monkeypatch.setattr(frames, "read", read)
        raise KeyboardInterrupt

    monkeypatch.setattr(frames, "read", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ask(renderer, "first")
    assert ask(renderer, "second") == "second"


PARENT = f"""
import sys, threading
from corellm.templates.renderer import TemplateRenderer
renderer = TemplateRenderer(seconds=60.0)
with renderer.session() as render:
    render("a", {{}})
    print(next(child._running.process.pid for child in renderer._children._children if child._running), flush=True)
renderer._seconds = 1.0
with renderer.session() as render:
    if sys.argv[1] == "busy":
        render({LOOPS!r}, {{}})
sys.stdin.read()
"""


@pytest.mark.parametrize("state", ["idle", "busy"])
def test_children_end_with_their_parent(state: str) -> None:
    """Also with one that is killed, and while they render."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, state], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
    deadline = time.monotonic() + 600
    while _runs(child):
        assert time.monotonic() < deadline, "it runs on"
        time.sleep(0.02)


def _runs(pid: int) -> bool:
    listed = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return bool(listed.stdout.strip()) and "Z" not in listed.stdout


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_asks_a_child_of_its_own(renderer: TemplateRenderer) -> None:
    """Two processes never share a child: their results would be mixed up."""
    assert ask(renderer, "parent") == "parent"
    pid = os.fork()
    if pid == 0:
        os._exit(0 if ask(renderer, "fork") == "fork" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert ask(renderer, "parent again") == "parent again"


def test_the_child_imports_little() -> None:
    """It starts fast and stays small: neither torch nor transformers, nor anything of the engine."""
    code = "import sys, corellm.templates.worker; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {m.split(".")[0] for m in loaded} & {"torch", "transformers", "numpy", "PIL", "pluggy"} == set()
    assert {m for m in loaded if m.startswith("corellm.")} == {
        "corellm.children", "corellm.children.frames", "corellm.children.memory", "corellm.children.serving",
            "corellm.moved",
        "corellm.templates", "corellm.templates.environment", "corellm.templates.worker",
    }  # fmt: skip


def test_a_child_that_cannot_start(renderer: TemplateRenderer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request fails with a typed error."""
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(ProcessingError, match="process"):
        ask(renderer, "a")
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(ProcessingError, match="status 1"):
        ask(renderer, "a")
