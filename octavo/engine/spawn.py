"""The parent's handle of an engine process."""

from __future__ import annotations

import signal
import subprocess
import sys

from octavo.engine.process import EngineStart, write_start
from octavo.engine.transport.endpoints import make_folder, remove_folder


class EngineProcess:
    """An engine in a process of its own. It ends when this process ends, however that happens.

    folder: where its sockets lie. The child gets a session of its own, so that Ctrl-C reaches only the front.
    """

    def __init__(self, factory: str, options: bytes) -> None:
        self.folder = make_folder()
        command = [sys.executable, "-m", "octavo.engine.process"]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        assert self._child.stdin is not None
        write_start(self._child.stdin, EngineStart(factory=factory, options=options, folder=self.folder))

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._child.pid

    def ending(self) -> str | None:
        """Return how the process ended, in words; None while it runs."""
        status = self._child.poll()
        if status is None:
            return None
        if status < 0:
            hint = " (out of memory?)" if status == -signal.SIGKILL else ""
            return f"the engine process was killed by {signal.Signals(-status).name}{hint}"
        return f"the engine process ended with status {status}"

    def stop(self, timeout: float = 10.0) -> None:
        """End the process and remove its sockets: ask, wait up to `timeout` seconds, then kill. Idempotent."""
        pipe = self._child.stdin
        if pipe is not None and not pipe.closed:
            pipe.close()
        try:
            self._child.wait(timeout)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        remove_folder(self.folder)
