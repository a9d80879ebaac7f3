"""A process that has imported what others import, and forks them: they start in a moment instead of some seconds.

`WarmProcess` asks it; it runs this file, with a socket as standard input. What it forks runs a module as `python -m`
does, or code as `python -c` does, with arguments, environment, folder and descriptors of its own, under its own name in
`/proc`, as a child of the process that asked; what starts others has a copy of the warm process for these. Nothing was
computed in the warm process, and no thread runs there. A forked process that ends by itself waits for its threads and
calls what is to be called at exit, as any other, but does not take its modules down one by one: that takes a third of a
second, most of it for copies of memory that it shares. Needs Linux; knows nothing of what it forks for.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import gc
import inspect
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from pkgutil import resolve_name
from types import MappingProxyType, ModuleType
from typing import Any

_MOST_BYTES = 1 << 17
"""Longest request: a command line and an environment."""
_MOST_FILES = 16
_ABOVE = 500
"""Descriptors from here on are free while a process's own get their numbers."""
_NAME_BYTES = 512
"""Longest command line that a process shows."""
_ADOPT_ORPHANS = 36
"""PR_SET_CHILD_SUBREAPER of prctl(2)."""
HANDED = "WARM_PROCESS"
"""Variable that tells forked code the number of the socket on which its copy of the warm process is asked."""
_WITHOUT_EFFECT = {"PYTEST_CURRENT_TEST", "PYTHONUNBUFFERED", "TORCHINDUCTOR_CACHE_DIR"}
"""Variables that may differ: others may be read during imports. Torch sets the last one as its compiler comes in."""

_start_fresh: Callable[..., None] = subprocess.Popen._execute_child  # type: ignore[attr-defined]
_parameters = inspect.signature(_start_fresh)


class WarmProcess:
    """The process, seen from the one that asks; it starts with the first request.

    Args:
        imports: modules, or functions as `module:function`, which are called.
        environment: its own, None for that of the first process that it is asked for; only what has the same one is
            forked from it.
        starts: by module, those that a process which runs it starts itself.
        copy_imports: what is forked is told of a copy (`HANDED`), which imports this, too; None for no such copy.
        asked: the socket of a warm process that runs.
    """

    def __init__(
        self,
        imports: Sequence[str],
        environment: Mapping[str, str] | None = None,
        starts: Mapping[str, Sequence[str]] = MappingProxyType({}),
        copy_imports: Sequence[str] | None = None,
        asked: socket.socket | None = None,
    ) -> None:
        self._imports, self._environment, self._starts, self._asked = imports, environment, starts, asked
        self._copy_imports, self._process = copy_imports, None
        self._processors = os.sched_getaffinity(0)
        self._lock = threading.Lock()

    def suits(self, environment: Mapping[str, str]) -> bool:
        """Whether a process that this thread starts, with this environment, would import the same.

        Libraries count the processors that they may use, where the environment does not say how many threads to have.
        """
        if self._environment is None:
            self._environment = dict(environment)
        different = {name for name, _ in set(environment.items()) ^ set(self._environment.items())}
        counts = "OMP_NUM_THREADS" not in environment and os.sched_getaffinity(0) != self._processors
        return different <= _WITHOUT_EFFECT and not counts

    def fork(self, words: Sequence[str], files: Mapping[int, int], **request: Any) -> int:
        """Return the id of a new child of this process.

        Args:
            words: its module or code, and arguments.
            files: its descriptors, `{number there: number here}`.
            request: what else `_become` takes.
        """
        starts = list(self._starts.get(words[0], ()))
        asked = {"words": words, "files": list(files), "starts": starts, "copy_imports": self._copy_imports}
        data = json.dumps(asked | request).encode()
        with self._lock:
            if self._asked is None:
                self._asked = self._start()
            ctypes.CDLL(None).prctl(_ADOPT_ORPHANS, 1, 0, 0, 0)
            socket.send_fds(self._asked, [data], list(files.values()))
            return int(self._asked.recv(_MOST_BYTES))

    def close(self) -> None:
        """End the process; what it forked goes on."""
        if self._asked is not None:
            self._asked.close()
            self._asked = None
            if self._process is not None:
                self._process.wait()

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-P", __file__, " " * _NAME_BYTES]
        with theirs:
            self._process = subprocess.Popen(command, stdin=theirs.fileno(), stdout=2, env=self._environment)
        ours.send(json.dumps(self._imports).encode())
        return ours


def fork_modules(warm: Mapping[str, WarmProcess], are_forked: Callable[[], bool] = lambda: True) -> Callable[[], None]:
    """Have `subprocess.Popen` fork `python -m MODULE` of these modules, until the function that is returned is called.

    Args:
        warm: the process that forks, by module, or by the code of `python -c`.
        are_forked: whether they are at the moment; a fresh interpreter starts otherwise, and where what is asked of the
            new process is not known here.
    """

    def start(*given: Any) -> None:
        asked = _parameters.bind(*given).arguments
        options, words = _options_and_words(asked["args"])
        process = warm.get(words[0]) if words and are_forked() else None
        environment = os.environ if asked["env"] is None else asked["env"]
        popen = asked["self"]
        standard = [asked[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        files = {number: number if file == -1 else file for number, file in enumerate(standard)}
        files |= {file: file for file in asked["pass_fds"]}
        if process is None or asked["preexec_fn"] is not None or max(files) >= _ABOVE or not process.suits(environment):
            _start_fresh(*given)
            return
        try:
            popen.pid = process.fork(
                words, files, environment=dict(environment), folder=str(asked["cwd"] or os.getcwd()),
                processors=list(os.sched_getaffinity(0)), session=asked["start_new_session"], options=options,
            )  # fmt: skip
            popen._child_created = True
        finally:
            popen._close_pipe_fds(
                *(asked[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite"))
            )

    before = subprocess.Popen._execute_child  # type: ignore[attr-defined]
    subprocess.Popen._execute_child = start  # type: ignore[attr-defined]
    return lambda: setattr(subprocess.Popen, "_execute_child", before)


def _options_and_words(args: Any) -> tuple[list[str], list[str]]:
    """The options of Python up to `-m` or `-c`, and the words after it; none of these for other commands."""
    words = list(args) if isinstance(args, list | tuple) else []
    for number, word in enumerate(words[1:4], 1):
        if words[0] == sys.executable and word in ("-m", "-c"):
            return words[1 : number + 1], words[number + 1 :]
        if word not in ("-P", "-u"):
            break
    return [], []


# --- the process itself -----------------------------------------------------------------------------------------------


def _serve(requests: socket.socket) -> dict[str, Any]:
    """Fork for requests until the other side closes; returns in each forked process, with what was asked for."""
    while True:
        data, files, _, _ = socket.recv_fds(requests, _MOST_BYTES, _MOST_FILES)
        if not data:
            os._exit(0)
        pid = _fork_orphan()
        if pid == 0:
            requests.detach()
            request = json.loads(data)
            _become(request, files)
            imports = request["copy_imports"]
            if not request["starts"] and imports is None:
                return request
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            if os.fork():
                theirs.close()
                if imports is not None:
                    os.environ[HANDED] = str(ours.detach())
                else:
                    copy = WarmProcess((), dict(os.environ), asked=ours)
                    fork_modules(dict.fromkeys(request["starts"], copy))
                return request
            ours.close()
            requests = theirs
            _leave_standard_streams()
            _import(imports or ())
            continue
        for file in files:
            os.close(file)
        requests.send(str(pid).encode())


def _import(names: Sequence[str]) -> None:
    """Import modules and call functions; what they leave is kept out of garbage collection."""
    gc.disable()
    for name in names:
        found = resolve_name(name)
        if ":" in name:
            found()
    gc.collect()
    gc.freeze()
    gc.enable()


def _fork_orphan() -> int:
    """Fork a process whose parent has ended, so that the one that asked adopts it; returns 0 there, else its id."""
    read, write = os.pipe()
    between = os.fork()
    if between == 0:
        pid = os.fork()
        if pid == 0:
            return 0
        os.write(write, str(pid).encode())
        os._exit(0)
    os.waitpid(between, 0)
    pid = int(os.read(read, 32))
    os.close(read)
    os.close(write)
    return pid


def _become(request: dict[str, Any], files: Sequence[int]) -> None:
    """Make this process what was asked for."""
    moved = [fcntl.fcntl(file, fcntl.F_DUPFD, _ABOVE) for file in files]
    os.closerange(3, _ABOVE)
    for number, file in zip(request["files"], moved, strict=True):
        os.dup2(file, number)
        os.close(file)
    if request["session"]:
        os.setsid()
    os.sched_setaffinity(0, request["processors"])
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    options = request["options"]
    if "PYTHONUNBUFFERED" in os.environ or "-u" in options:
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    if "-P" not in options:
        sys.path.insert(0, request["folder"] if options[-1] == "-m" else "")
    _show([sys.executable, *options, *request["words"]])


def _leave_standard_streams() -> None:
    """Have nothing in their place: whoever reads them waits for the end of all that have them."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    os.close(nothing)
    _show(["warm", "process"])


def _show(command: Sequence[str]) -> None:
    """Have `/proc` show a command line."""
    fields = Path("/proc/self/stat").read_text().rpartition(") ")[2].split()
    start, end = int(fields[45]), int(fields[46])  # of the memory with this process's own
    shown = "\0".join(command).encode()[: end - start - 1]
    ctypes.memmove(start, shown.ljust(end - start, b"\0"), end - start)


def _end(ended: list[int]) -> None:
    """End this process with its exit status, where it is known."""
    for status in ended:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not stream.closed:
                stream.flush()
        os._exit(status)


def _run(options: Sequence[str], words: Sequence[str]) -> None:
    """Run code, or a module."""
    word, *arguments = words
    if options[-1] == "-c":
        sys.argv = ["-c", *arguments]
        gc.unfreeze()  # what is frozen is no referrer, which some code asks for as it is imported
        sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(word, "<string>", "exec"), vars(sys.modules["__main__"]))
        return
    sys.modules.pop(word, None)  # imported above: runpy warns of it
    sys.argv = [word, *arguments]
    runpy.run_module(word, run_name="__main__", alter_sys=True)


def main() -> None:
    """Import what is asked for, fork, and in a forked process run its module or code."""
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests = socket.socket(fileno=os.dup(0))
    ended: list[int] = []
    atexit.register(_end, ended)  # before all others: it is called last
    _import(json.loads(requests.recv(_MOST_BYTES)))
    request = _serve(requests)
    signal.signal(signal.SIGINT, interrupt)
    try:
        _run(request["options"], request["words"])
        ended.append(0)
    except SystemExit as error:
        ended.append(error.code & 0xFF if isinstance(error.code, int) else int(error.code is not None))
        raise


if __name__ == "__main__":
    main()
