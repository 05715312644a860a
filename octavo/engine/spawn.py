"""The parent's handle of an engine process."""

from __future__ import annotations

from pathlib import Path

import msgspec

from octavo.engine.child import Child
from octavo.engine.process import EngineStart
from octavo.engine.transport.endpoints import make_folder, remove_folder


class EngineProcess:
    """An engine in a process of its own. It ends when this process ends, however that happens.

    folder: where its sockets lie. num_fronts: processes that will ask it. front: which of them this one is.
    """

    def __init__(self, factory: str, options: bytes, num_fronts: int = 1) -> None:
        self.folder = make_folder()
        self.front = 0
        start = EngineStart(factory=factory, options=options, folder=self.folder, num_fronts=num_fronts)
        self._child = Child("octavo.engine.process", msgspec.msgpack.encode(start), "the engine process")

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._child.pid

    def ending(self) -> str | None:
        """Return how the process ended, in words; None while it runs."""
        return self._child.ending()

    def stop(self, timeout: float = 10.0) -> None:
        """End the process and remove its sockets: ask, wait up to `timeout` seconds, then kill. Idempotent."""
        self._child.stop(timeout)
        remove_folder(self.folder)


class EngineElsewhere:
    """An engine that another process owns: whoever does removes its folder when it has ended. front: which one this is."""

    def __init__(self, folder: str, front: int, pid: int = 0) -> None:
        self.folder = folder
        self.pid = pid
        self.front = front

    def ending(self) -> str | None:
        """Return that the engine has ended; None while it runs."""
        return None if Path(self.folder).is_dir() else "the engine process has ended"

    def stop(self, timeout: float = 0.0) -> None:
        """Do nothing: its owner ends it."""
