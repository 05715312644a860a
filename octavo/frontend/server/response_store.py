"""What `/v1/responses` keeps of its answers: in memory, bounded in bytes and in time, gone with the process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from octavo.base.errors import NotFoundError

MAX_BYTES = 64 * 2**20
MAX_SECONDS = 3600.0


@dataclass(slots=True, kw_only=True)
class StoredResponse:
    """One answer. whole: returns the answer as it is now. messages: returns the chat with it, without instructions.

    num_bytes: about what it takes. task: of an answer that is made in the background.
    """

    whole: Callable[[], dict[str, Any]]
    messages: Callable[[], list[dict[str, Any]]]
    num_bytes: int
    task: asyncio.Task[None] | None = None
    kept_since: float = field(default_factory=time.monotonic)


class ResponseStore:
    """The answers by id. The oldest goes first, when all together are too large, or when it is too old."""

    def __init__(self, max_bytes: int = MAX_BYTES, max_seconds: float = MAX_SECONDS) -> None:
        self._max_bytes = max_bytes
        self._max_seconds = max_seconds
        self._kept: dict[str, StoredResponse] = {}
        self._num_bytes = 0

    def add(self, id: str, response: StoredResponse) -> None:
        """Keep an answer."""
        self._kept[id] = response
        self._num_bytes += response.num_bytes
        self._forget_old()

    def find(self, id: str, field: str) -> StoredResponse:
        """Return an answer; raises NotFoundError naming the field that asked for it."""
        self._forget_old()
        if id not in self._kept:
            raise NotFoundError(
                f"{field}: there is no response {id!r}; those with store: true are kept for a while", field=field
            )
        return self._kept[id]

    def remove(self, id: str) -> None:
        """Forget an answer, and stop making it."""
        response = self._kept.pop(id)
        self._num_bytes -= response.num_bytes
        if response.task is not None:
            response.task.cancel()

    def _forget_old(self) -> None:
        before = time.monotonic() - self._max_seconds
        for id, response in list(self._kept.items()):
            if self._num_bytes <= self._max_bytes and response.kept_since >= before:
                break
            self.remove(id)
