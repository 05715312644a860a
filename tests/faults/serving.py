"""`octavo serve` with the tiny model, everything that belongs to it, and whether all of it is gone afterwards."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.real.serving import free_port, healthy, wait_until
from tests.server.harness import samples

# What health and metrics may take to tell the truth.
TRUTH_SECONDS = 1.0
_FLAGS = ("--served-model-name", "tiny", "--dtype", "float32", "--shutdown-timeout", "5")
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OCTAVO_LOG_LEVEL": "WARNING"}


@dataclass(slots=True, kw_only=True)
class Server:
    """A running server. ends: status with which it has to end when it is told to; None: it has been killed or ends by itself.

    seen: every process that was ever part of it. shared: files in memory that they had open.
    """

    process: subprocess.Popen[bytes]
    url: str
    folder: Path
    ends: int | None = 0
    seen: set[int] = field(default_factory=set)
    shared: set[str] = field(default_factory=set)

    def family(self) -> dict[int, str]:
        """Return process ids and command lines of the server and of all that descend from it."""
        parents: dict[int, int] = {}
        for entry in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                parents[int(entry)] = int(Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1])
        found, new = set[int](), {self.process.pid}
        while new:
            found |= new
            new = {pid for pid, parent in parents.items() if parent in found} - found
        self.seen |= found
        lines: dict[int, str] = {}
        for pid in found:
            with contextlib.suppress(OSError):
                lines[pid] = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
                opened = [line.split(maxsplit=5)[-1] for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
                self.shared |= {name for name in opened if name.startswith("/dev/shm/")}
        return lines

    def pid_of(self, module: str, number: int = 0) -> int:
        """Return the process id of a part of the server: by its module, and of several the one started as `number`."""
        return sorted(pid for pid, line in self.family().items() if f"-m {module}" in line)[number]

    def ask(self, prompt: list[int] | str, **options: Any) -> httpx.Response:
        """Ask for a greedy completion."""
        body = {"prompt": prompt, "max_tokens": 12, "temperature": 0, "ignore_eos": True, **options}
        return httpx.post(self.url + "/v1/completions", json=body, timeout=30)

    def text(self, prompt: list[int] | str, **options: Any) -> str:
        """Return the text of a completion."""
        response = self.ask(prompt, **options)
        assert response.status_code == 200, response.text
        return response.json()["choices"][0]["text"]

    def metrics(self) -> dict[str, float]:
        """Return every sample by its name, without the model's."""
        found = samples(httpx.get(self.url + "/metrics", timeout=10).text)
        return {re.sub(r',?model_name="tiny",?', "", name).replace("{}", ""): value for name, value in found.items()}

    def fill_disk(self) -> None:
        """From now on no process of the server can write a byte to any file, as on a disk that is full."""
        for pid in self.family():
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, 0))

    def idle(self) -> bool:
        """Return whether nobody holds a slot or a page, or waits."""
        return busy_gauges(self.metrics()) == {}

    def healthy(self) -> bool:
        """Return whether the server says that it is well."""
        return healthy(self.url)


def busy_gauges(found: dict[str, float]) -> dict[str, float]:
    """Return the gauges of what requests hold that are not 0."""
    names = ("num_requests_running", "num_requests_waiting", "num_slots_used", "kv_cache_usage_perc")
    pages = [f'octavo:pool_pages{{state="{state}"}}' for state in ("used", "pending")]
    return {name: found[name] for name in (*(f"octavo:{name}" for name in names), *pages) if found[name]}


def within(seconds: float, holds: Callable[[], bool]) -> None:
    """Wait until something holds, and fail after so long."""
    wait_until(holds, seconds)


@contextlib.contextmanager
def serve(model: Path, *flags: str, waits: bool = True) -> Iterator[Server]:
    """Yield a server, ready if the test waits. When it has ended, no process, shared memory or file of it may be left."""
    # A folder of its own for what is temporary: what is left there is the server's. A socket's path has to be short.
    folder = Path(tempfile.mkdtemp(prefix="faults-", dir="/tmp"))
    folders = {"TMPDIR": folder, "OCTAVO_CACHE": folder / "cache", "TORCHINDUCTOR_CACHE_DIR": model.parent / "torch"}
    port = free_port()
    given = ["--port", str(port), *_FLAGS, *flags]
    server = Server(
        process=subprocess.Popen(
            [sys.executable, "-m", "octavo.cli.main", "serve", str(model), *given],
            env={**os.environ, **_ENVIRONMENT, **{name: str(path) for name, path in folders.items()}},  # noqa: TID251
        ),
        url=f"http://127.0.0.1:{port}",
        folder=folder,
    )
    try:
        wait_until(lambda: not waits or server.healthy() or server.process.poll() is not None, 60)
        server.family()
        yield server
        server.family()
        if server.ends is not None:
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(15) == server.ends
        within(8, lambda: not any(map(_alive, server.seen)))
        assert not healthy(server.url)
        left = [str(path.relative_to(folder)) for path in folder.rglob("*")]
        assert not left, f"files stayed behind: {left}"
        left = [name for name in server.shared if Path(name).exists()]
        assert not left, f"shared memory stayed behind: {left}"
    finally:
        for pid in filter(_alive, server.seen):
            os.kill(pid, signal.SIGKILL)
        server.process.wait()
        shutil.rmtree(folder)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
