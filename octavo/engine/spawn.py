"""The parent's handle of an engine process."""

from __future__ import annotations

import msgspec

from octavo.engine.child import Child
from octavo.engine.process import EngineStart
from octavo.engine.transport.endpoints import make_folder, remove_folder


class EngineProcess:
    """An engine in a process of its own. It ends when this process ends, however that happens.

    folder: where its sockets lie.
    """

    def __init__(self, factory: str, options: bytes) -> None:
        self.folder = make_folder()
        start = msgspec.msgpack.encode(EngineStart(factory=factory, options=options, folder=self.folder))
        self._child = Child("octavo.engine.process", start, "the engine process")

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
