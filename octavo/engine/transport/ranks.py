"""The wire between an executor and its ranks: the same bytes to every rank, in order, and their answers in one queue.

Neither end ever waits to send. What is under way is bounded by the plans in flight.
"""

from __future__ import annotations

import zmq


def _rank_endpoint(folder: str, rank: int) -> str:
    return f"ipc://{folder}/rank-{rank}"


def _answers_endpoint(folder: str) -> str:
    return f"ipc://{folder}/answers"


class RankHub:
    """The executor's end. folder: a private one, where the sockets lie."""

    def __init__(self, folder: str, num_ranks: int) -> None:
        self._context = zmq.Context()
        self._answers = _unbounded(self._context, zmq.PULL)
        self._answers.bind(_answers_endpoint(folder))
        self._ranks = [_unbounded(self._context, zmq.PUSH) for _ in range(num_ranks)]
        for rank, socket in enumerate(self._ranks):
            socket.bind(_rank_endpoint(folder, rank))

    def send(self, data: bytes) -> None:
        """Send to every rank."""
        for socket in self._ranks:
            socket.send(data, zmq.NOBLOCK)

    def receive(self, seconds: float) -> bytes | None:
        """Return the next answer of any rank; None when time is up."""
        return self._answers.recv() if self._answers.poll(int(seconds * 1000)) else None

    def close(self) -> None:
        """Close at once; idempotent."""
        self._context.destroy(linger=0)


class RankLine:
    """A rank's end."""

    def __init__(self, folder: str, rank: int) -> None:
        self._context = zmq.Context()
        self._orders = _unbounded(self._context, zmq.PULL)
        self._orders.connect(_rank_endpoint(folder, rank))
        self._answers = _unbounded(self._context, zmq.PUSH)
        self._answers.connect(_answers_endpoint(folder))

    def waiting(self) -> bool:
        """Return whether the executor has sent something more."""
        return bool(self._orders.poll(0))

    def receive(self) -> bytes:
        """Return what the executor sent next."""
        return self._orders.recv()

    def send(self, data: bytes) -> None:
        """Send to the executor."""
        self._answers.send(data, zmq.NOBLOCK)

    def close(self) -> None:
        """Give what was sent two seconds to leave, then close."""
        self._context.destroy(linger=2000)


def _unbounded(context: zmq.Context[zmq.Socket[bytes]], kind: int) -> zmq.Socket[bytes]:
    socket = context.socket(kind)
    socket.set_hwm(0)
    return socket
