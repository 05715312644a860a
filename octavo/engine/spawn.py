"""The parent's handle of an engine process, which may be started again when it has died."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec

from octavo.engine.child import Child
from octavo.engine.process import EngineStart
from octavo.engine.transport.endpoints import make_folder, remove_folder

_RESTART_WINDOW = 600.0
_LONGEST_DELAY = 30.0


class Restarts:
    """When an engine that died is started again: each time later than the last, and at most `most` times in ten minutes."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._times: list[float] = []

    def delay(self) -> float | None:
        """Return after how many seconds it is started again, and count that; None if it is not."""
        now = time.monotonic()
        self._times = [when for when in self._times if now - when < _RESTART_WINDOW]
        if len(self._times) >= self._most:
            return None
        self._times.append(now)
        return min(2.0 ** len(self._times) / 4, _LONGEST_DELAY)


class EngineProcess:
    """An engine in a process of its own. It ends when this process ends, however that happens.

    home: holds a folder for the sockets of each process; generation: the number of the one that runs, counted from 0.
    num_fronts: processes that will ask it. front: which of them this one is.
    """

    def __init__(self, factory: str, options: bytes, num_fronts: int = 1) -> None:
        self.home = make_folder()
        self.front = self.generation = 0
        self._start = EngineStart(factory=factory, options=options, folder="", home=self.home, num_fronts=num_fronts)
        self._child = self._begin()

    def _begin(self) -> Child:
        os.mkdir(self.folder, 0o700)
        start = msgspec.structs.replace(self._start, folder=self.folder)
        child = Child("octavo.engine.process", msgspec.msgpack.encode(start), "the engine process")
        os.symlink(
            str(child.pid), f"{self.folder}/pid"
        )  # For fronts elsewhere; a full disk takes it, and it is there at once.
        return child

    @property
    def folder(self) -> str:
        """Where its sockets lie."""
        return f"{self.home}/{self.generation}"

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._child.pid

    def ending(self) -> str | None:
        """Return how the process ended, in words; None while it runs."""
        return self._child.ending()

    def end(self, timeout: float = 10.0) -> None:
        """End the process and remove its sockets: ask, wait up to `timeout` seconds, then kill. Idempotent."""
        self._child.stop(timeout)
        remove_folder(self.folder)

    def restart(self) -> bool:
        """Start another process like it; True, for it has been started."""
        self.end()
        self.generation += 1
        self._child = self._begin()
        return True

    def stop(self, timeout: float = 10.0) -> None:
        """End the process for good, and remove all that it had. Idempotent."""
        self.end(timeout)
        remove_folder(self.home)


class EngineElsewhere:
    """An engine that another process owns: whoever does removes its folder when it has ended. front: which one this is."""

    def __init__(self, home: str, front: int) -> None:
        self.home = home
        self.front = front
        self.generation = 0

    @property
    def folder(self) -> str:
        """Where its sockets lie."""
        return f"{self.home}/{self.generation}"

    @property
    def pid(self) -> int:
        """Its process id; 0 if it has ended."""
        link = Path(self.folder, "pid")
        return int(os.readlink(link)) if link.is_symlink() else 0

    def ending(self) -> str | None:
        """Return that the engine has ended; None while it runs."""
        return None if Path(self.folder).is_dir() else "the engine process has ended"

    def end(self, timeout: float = 0.0) -> None:
        """Do nothing: its owner ends it."""

    def restart(self) -> bool:
        """Go over to the process that its owner has started in its place; False while there is none."""
        # The link of one that is complete; it points to nothing.
        newest = max((int(path.parent.name) for path in Path(self.home).glob("*/*") if path.name == "pid"), default=0)
        restarted, self.generation = newest > self.generation, max(newest, self.generation)
        return restarted

    stop = end
