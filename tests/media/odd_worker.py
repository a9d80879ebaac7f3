"""A child process for tests: decodes like `corellm.media.worker`, except for files that begin with a command."""

from __future__ import annotations

import os
import signal
import socket
import time
from typing import Any

from corellm.children import memory
from corellm.children.serving import serve_files
from corellm.media.worker import Result, Worker

PIXELS = 8 * 8 * 3


class OddWorker(Worker):
    """Does what a file says."""

    def handle(self, request: dict[str, Any], file: int | None) -> Result:
        """Hang, crash, take all memory or lie; or decode."""
        command = os.pread(file, 100, 0).split(b"!")[0].decode("latin-1") if file is not None else ""
        if command == "hang":
            time.sleep(1000)
        if command == "loop":
            while True:
                pass
        if command == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if command == "exit":
            os._exit(0)
        if command == "eat":
            super().handle(request, file)  # sets the limit
            return {"kept": len([bytearray(1 << 24) for _ in range(1000)])}, None
        if command in LIES:
            return LIES[command], self._share(bytes(PIXELS))
        if command == "no file":
            return {"width": 8, "height": 8, "at": 1}, None
        if command == "shrinks":
            shared = os.memfd_create("any")
            memory.write(shared, bytes(PIXELS))
            return {"width": 8, "height": 8, "at": 1}, shared
        if command == "a pipe":
            return {"width": 8, "height": 8, "at": 1}, os.pipe()[0]
        if command in FRAMES:
            with socket.socket(fileno=os.dup(1)) as parent:
                parent.sendall(len(FRAMES[command]).to_bytes(8, "big") + FRAMES[command])
            time.sleep(1000)
        if command == "many files":
            with socket.socket(fileno=os.dup(1)) as parent:
                parent.sendall((1000).to_bytes(8, "big"))
                for _ in range(1000):
                    socket.send_fds(parent, [b" "], [1])
        if command == "noise":
            os.write(1, b"\0\0\0\0\0\0\0\2no")
        return super().handle(request, file)


LIES: dict[str, Any] = {
    "larger": {"width": 80, "height": 80, "at": 1},
    "over the limit": {"width": 100_000, "height": 100_000, "at": 1},
    "negative": {"width": -8, "height": -8, "at": 1},
    "nothing": {"width": 0, "height": 8, "at": 1},
    "text": {"width": "8", "height": 8, "at": 1},
    "true": {"width": True, "height": 8, "at": 1},
    "nan": {"width": float("nan"), "height": 8, "at": 1},
    "behind the end": {"width": 8, "height": 8, "at": 200},
    "no dict": [8, 8],
    "another error": {"raised": ["SystemExit", "bye", None, None]},
    "half an error": {"raised": ["MediaError"]},
    "an error of no name": {"raised": [["MediaError"], "bye", None, None]},
    "no time": {"width": 8, "height": 8, "duration": 10**400, "fps": None, "frames": 1},
}
FRAMES = {"deep": b"[" * 100_000, "long": b"[" + b"[]," * 100_000 + b"0]"}
"""Whole messages. Reading the long one would take a hundred times its bytes."""

if __name__ == "__main__":
    serve_files(OddWorker().handle)
