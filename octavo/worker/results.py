"""A step's result on its way to the host."""

from __future__ import annotations

import time
from collections.abc import Callable

from octavo.device.base import Event
from octavo.protocol.step import StepResult

# Makes a result, once the device has come so far.
Finish = Callable[[], StepResult]
_POLL_SECONDS = 0.0005


class Pending:
    """The result of a plan that was launched. finish: makes it, once the device has passed `event`; a later one
    takes its place where more was queued for the plan.
    """

    def __init__(self, event: Event, finish: Finish) -> None:
        self.event = event
        self._finish = finish

    def ready_within(self, seconds: float | None) -> bool:
        """Wait up to `seconds` (None: for ever); return whether the device is done."""
        if seconds is None:
            self.event.wait()
            return True
        until = time.monotonic() + seconds
        while not self.event.done():
            if time.monotonic() >= until:
                return False
            time.sleep(_POLL_SECONDS)
        return True

    def result(self) -> StepResult:
        """Wait for the device and return the result."""
        self.event.wait()
        return self._finish()
