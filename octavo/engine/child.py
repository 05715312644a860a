"""Both ends of a child process that lives no longer than its parent.

The parent writes one record to the child's standard input and leaves it open: its end, or another parent, means stop. Terminal
and service signals are for the parent alone.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import struct
import subprocess
import sys
from pathlib import Path

_LENGTH = struct.Struct("!Q")


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped a process until another lets it go on; False where nothing can be known of it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
    except OSError:
        return False


class Child:
    """The parent's handle: `python -m module`, told `start`. name: what it is called in messages. files: descriptors that it
    inherits.

    The child gets a session of its own, so that Ctrl-C reaches only the front.
    """

    def __init__(self, module: str, start: bytes, name: str, files: tuple[int, ...] = ()) -> None:
        self._name = name
        self._child = subprocess.Popen(
            [sys.executable, "-m", module], stdin=subprocess.PIPE, start_new_session=True, pass_fds=files
        )
        pipe = self._child.stdin
        assert pipe is not None
        try:
            pipe.write(_LENGTH.pack(len(start)) + start)
            pipe.flush()
        except BrokenPipeError:
            # It has ended already, and `ending` says how. Closing tries the rest of the record once more.
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._child.pid

    @property
    def status(self) -> int | None:
        """The exit status; None while the process runs."""
        return self._child.poll()

    def ending(self) -> str | None:
        """Return how the process ended, in words; None while it runs."""
        status = self._child.poll()
        if status is None:
            return None
        if status < 0:
            hint = " (out of memory?)" if status == -signal.SIGKILL else ""
            return f"{self._name} was killed by {signal.Signals(-status).name}{hint}"
        return f"{self._name} ended with status {status}"

    def ask(self) -> None:
        """Ask the process to end; idempotent."""
        pipe = self._child.stdin
        assert pipe is not None
        if not pipe.closed:
            pipe.close()

    def kill(self) -> None:
        """End the process at once, whatever it does; idempotent."""
        self._child.kill()
        self.ask()
        self._child.wait()

    def stop(self, timeout: float) -> None:
        """End the process: ask, wait up to `timeout` seconds, then kill. Idempotent."""
        self.ask()
        try:
            self._child.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()


class Parent:
    """The child's view of its parent, made first of all."""

    def __init__(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        self.descriptor = sys.stdin.fileno()
        self._pid = os.getppid()
        self._poller = select.poll()
        self._poller.register(self.descriptor, select.POLLIN)

    def read_start(self) -> bytes:
        """Return the record that the parent wrote; raises EOFError if the parent went away first."""
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        return self._read(length)

    def gone_within(self, seconds: float) -> bool:
        """Return True as soon as the parent is gone or asks for the end, False after `seconds` without that."""
        return bool(self._poller.poll(seconds * 1000)) or os.getppid() != self._pid

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = os.read(self.descriptor, size - len(data))
            if not part:
                raise EOFError("the parent process is gone")
            data += part
        return data
