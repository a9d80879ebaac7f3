"""A channel between two processes: messages of bytes, each with at most one file descriptor.

One end of a socket pair, which has no name: no other process can connect, and nothing is left in a file system. Knows
no types of messages. One thread may send while another receives.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
from collections import deque

MAX_MESSAGE_BYTES = 1 << 28

_HEADER = struct.Struct(">Q?")


class Channel:
    """One end of a channel.

    Args:
        end: a connected stream socket; the channel owns it.
    """

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._buffer = bytearray()
        self._files: deque[int | None] = deque()
        self._poll = select.poll()
        self._poll.register(end, select.POLLIN)

    def send(self, message: bytes, file: int | None = None) -> None:
        """Send a message; waits while the other side does not read.

        Args:
            message: at most `MAX_MESSAGE_BYTES`.
            file: a descriptor, of which the other side gets a copy; it may be closed after.

        Raises:
            OSError: the channel is closed.
        """
        assert len(message) <= MAX_MESSAGE_BYTES
        header = _HEADER.pack(len(message), file is not None)
        sent = socket.send_fds(self._socket, [header, message], [] if file is None else [file])
        if sent < len(header) + len(message):
            self._socket.sendall(memoryview(header + message)[sent:])

    def receive(self, seconds: float | None) -> list[tuple[bytes, int | None]]:
        """Return the messages that have come, each with its descriptor, which the caller closes.

        Args:
            seconds: how long to wait if there is none; None for as long as it takes.

        Raises:
            EOFError: the other side closed the channel, and all messages were returned.
            OSError: the other side ended in the middle of something.
        """
        messages: list[tuple[bytes, int | None]] = []
        wait = None if seconds is None else seconds * 1000
        while self._poll.poll(0 if messages else wait):
            data, files, flags, _ = socket.recv_fds(self._socket, 1 << 18, 1)
            if not data:
                if messages:
                    break  # the next call tells
                raise EOFError("the other side closed the channel")
            self._buffer += data
            for file in files:
                os.set_inheritable(file, False)
            # the system drops a descriptor if this process has too many; its message comes without
            self._files.extend(files or ([None] if flags & socket.MSG_CTRUNC else []))
            messages += self._complete()
        return messages

    def _complete(self) -> list[tuple[bytes, int | None]]:
        """The messages whose last byte has come, taken out of the buffer."""
        messages: list[tuple[bytes, int | None]] = []
        start = 0
        while len(self._buffer) >= start + _HEADER.size:
            length, has_file = _HEADER.unpack_from(self._buffer, start)
            if length > MAX_MESSAGE_BYTES:
                raise ConnectionError(f"a message of {length} bytes was announced, more than {MAX_MESSAGE_BYTES}")
            body, end = start + _HEADER.size, start + _HEADER.size + length
            if len(self._buffer) < end:
                break
            messages.append((bytes(self._buffer[body:end]), self._files.popleft() if has_file else None))
            start = end
        del self._buffer[:start]
        return messages

    def finish(self) -> None:
        """Tell the other side that nothing more comes; what it still sends can be received."""
        with contextlib.suppress(OSError):  # the other side is closed already
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close this end."""
        for file in self._files:
            if file is not None:
                os.close(file)
        self._files.clear()
        self._socket.close()
