"""Control messages waiting for their plan."""

from __future__ import annotations

from octavo.protocol.control import Control


class PendingControls:
    """Keeps control messages in order of arrival until they are due."""

    def __init__(self) -> None:
        self._waiting: list[Control] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def draining(self) -> bool:
        """Whether a message waits for everything admitted to finish; nothing new is admitted meanwhile."""
        return any(control.when == "after_drain" for control in self._waiting)

    def add(self, control: Control) -> None:
        """Queue a message."""
        self._waiting.append(control)

    def due(self, plan: int, *, drained: bool, idle: bool) -> tuple[Control, ...]:
        """Take the messages that go with plan number `plan`.

        drained: everything admitted has finished. idle: and nothing waits, so plan numbers would not go on by themselves.
        """
        due = [
            control
            for control in self._waiting
            if control.when == "at_once"
            or (control.when == "at_plan" and (idle or plan >= control.plan))
            or (control.when == "after_drain" and drained)
        ]
        if due:
            self._waiting = [control for control in self._waiting if control not in due]
        return tuple(due)
