"""What commands need of servers: one of our own (`octavo serve` in a child process, on a free port), and clients of any."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import httpx

from octavo.base.env import read_env
from octavo.base.errors import EngineDeadError

_READY_SECONDS = 600.0
_STOP_SECONDS = 30.0


class OwnServer:
    """A context manager: the server starts when it is made and has ended when its block has. status: its exit status then."""

    def __init__(self, flags: Sequence[str]) -> None:
        port = _free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.status: int | None = None
        self.command = ["octavo", "serve", "--host", "127.0.0.1", "--port", str(port), "--disable-log-stats", *flags]
        self._began = time.perf_counter()
        self._process = subprocess.Popen([sys.executable, "-m", "octavo.cli.main", *self.command[1:]])

    async def ready(self) -> float:
        """Wait until it answers; return the seconds since its start. Raises EngineDeadError if it ends, or takes too long."""
        end = self._began + _READY_SECONDS
        async with httpx.AsyncClient(timeout=5.0) as http:
            while time.perf_counter() < end:
                if self._process.poll() is not None:
                    raise EngineDeadError(
                        f"the server ended with status {self._process.returncode} before it was ready"
                    )
                with contextlib.suppress(httpx.TransportError):
                    if (await http.get(f"{self.url}/health")).status_code == 200:
                        return time.perf_counter() - self._began
                await asyncio.sleep(0.02)
        raise EngineDeadError(f"the server was not ready after {_READY_SECONDS:g} seconds")

    def __enter__(self) -> OwnServer:
        return self

    def __exit__(self, *exc: object) -> None:
        """End it in order, or by force if it does not listen."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self.status = self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self.status = self._process.wait()


def client_of(url: str, **options: Any) -> httpx.AsyncClient:
    """Return a client of a server's routes, with the key in OCTAVO_API_KEY. url: with or without /v1. options: httpx's."""
    key = read_env().api_key
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return httpx.AsyncClient(base_url=url.rstrip("/").removesuffix("/v1"), headers=headers, **options)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
