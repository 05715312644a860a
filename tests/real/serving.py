"""A real server on the embedded model, on a free loopback port."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import httpx


def free_port() -> int:
    """Return a loopback port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def serving(*flags: str, model: str = "demo") -> Iterator[str]:
    """Yield the URL of `octavo serve`; it must end in order."""
    port = free_port()
    command = [sys.executable, "-m", "octavo.cli.main", "serve", model, "--port", str(port), *flags]
    server = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})  # noqa: TID251
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: healthy(url), 120)
        yield url
    finally:
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0


def healthy(url: str) -> bool:
    """Return whether the server answers that it is well."""
    try:
        return httpx.get(url + "/health", timeout=2).status_code == 200
    except httpx.TransportError:
        return False


def wait_until(holds, seconds: float) -> None:
    """Wait until something holds; fail when time is up."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not come true in time"
        time.sleep(0.05)
