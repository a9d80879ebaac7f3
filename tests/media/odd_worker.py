"""A child process for tests: decodes like `corellm_media.worker`, except for files that begin with a command."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import time
from typing import Any

from corellm.children.memory import KEPT_BYTES, SharedMemory
from corellm.children.serving import serve_with_memory
from corellm.media.worker import Result
from corellm_media.worker import MediaWorker


class OddWorker(MediaWorker):
    """Does what a file says."""

    def handle(self, request: dict[str, Any], shared: SharedMemory) -> Result:
        """Hang, crash, take all memory or lie; or decode."""
        command = shared.read(min(request["bytes"], 100)).split(b"!")[0].decode("latin-1")
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
            super().handle(request, shared)  # sets the limit
            return {"kept": len([bytearray(1 << 24) for _ in range(1000)])}
        if command in LIES:
            return LIES[command]
        if command == "shrinks":
            with contextlib.suppress(PermissionError):
                os.ftruncate(shared.descriptor, 0)
                return {"width": 8, "height": 8}
            return {"raised": ["MediaError", "not permitted", None, None]}
        if command == "seals":
            for seal in (fcntl.F_SEAL_WRITE, fcntl.F_SEAL_GROW):
                with contextlib.suppress(PermissionError):
                    fcntl.fcntl(shared.descriptor, fcntl.F_ADD_SEALS, seal)
                    return {"width": 8, "height": 8}
            return {"raised": ["MediaError", "not permitted", None, None]}
        if command == "grows":
            os.pwrite(shared.descriptor, b"x" * (KEPT_BYTES + 1), 0)
            os.ftruncate(shared.descriptor, 1 << 62)
            return {"raised": ["MediaError", "grown", None, None]}
        if command == "prints":
            os.write(1, b"any")
        if command in FRAMES:
            with socket.socket(fileno=os.dup(0)) as parent:
                parent.sendall(len(FRAMES[command]).to_bytes(8, "big") + FRAMES[command])
            time.sleep(1000)
        if command == "many files":
            with socket.socket(fileno=os.dup(0)) as parent:
                for _ in range(1000):
                    socket.send_fds(parent, [b" "], [1])
        if command == "noise":
            os.write(0, b"\0\0\0\0\0\0\0\2no")
        return super().handle(request, shared)


LIES: dict[str, Any] = {
    "larger": {"width": 80, "height": 80},
    "over the limit": {"width": 100_000, "height": 100_000},
    "negative": {"width": -8, "height": -8},
    "nothing": {"width": 0, "height": 8},
    "text": {"width": "8", "height": 8},
    "true": {"width": True, "height": 8},
    "nan": {"width": float("nan"), "height": 8},
    "no dict": [8, 8],
    "another error": {"raised": ["SystemExit", "bye", None, None]},
    "half an error": {"raised": ["MediaError"]},
    "an error of no name": {"raised": [["MediaError"], "bye", None, None]},
    "no time": {"width": 8, "height": 8, "duration": 10**400, "fps": None, "frames": 1},
}
FRAMES = {"deep": b"[" * 100_000, "long": b"[" + b"[]," * 100_000 + b"0]"}
"""Whole messages. Reading the long one would take a hundred times its bytes."""

if __name__ == "__main__":
    serve_with_memory(OddWorker().handle)
