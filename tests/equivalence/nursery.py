"""Processes of engines and ranks, forked off one that has loaded the libraries: to load them takes each two seconds.

What runs in them is what `octavo.engine.child` would have started, told through the same pipe; they belong to the same session
rules, and end when the pipe does. The nursery is one process without threads; it ends with whoever made it, and its children too.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Generator
from pathlib import Path
from types import SimpleNamespace

# What engines and ranks import sooner or later.
_LOADED = (
    "torch.distributed",
    "octavo.launch",
    "octavo.engine.core",
    "octavo.engine.process",
    "octavo.engine.schedule.scheduler",
    "octavo.models.llama",
    "octavo.nn.parallel.gloo",
    "octavo.worker.executors.inproc",
    "octavo.worker.executors.multiproc",
    "octavo.worker.executors.rank",
)
_STATUS = struct.Struct("!i")


class _Forked:
    """What `subprocess.Popen` is to a `Child`, of a process that the nursery has forked."""

    def __init__(self, place: str, module: str) -> None:
        told, tell = os.pipe()
        self._ended, end = os.pipe()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
            line.connect(place)
            socket.send_fds(line, [module.encode()], [told, end])
            self.pid = int(line.recv(32))
        os.close(told)
        os.close(end)
        self.stdin = open(tell, "wb")  # noqa: SIM115 - open as long as the child shall live
        self._status: int | None = None

    def poll(self) -> int | None:
        """Return the exit status, None while it runs."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit status."""
        if self._status is None:
            if not select.select([self._ended], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("a forked process", timeout or 0.0)
            # Nothing: the nursery is gone, and killed it.
            data = os.read(self._ended, _STATUS.size)
            self._status = _STATUS.unpack(data)[0] if data else -signal.SIGKILL
            os.close(self._ended)
        return self._status

    def kill(self) -> None:
        """End it at once."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def _take_over(place: str) -> None:
    """Let every `Child` of this process come from the nursery at this place."""
    from octavo.engine import child

    def start(command: list[str], *, stdin: int, start_new_session: bool, pass_fds: tuple[int, ...]) -> _Forked:
        assert command[1] == "-m"
        assert (stdin, start_new_session, pass_fds) == (subprocess.PIPE, True, ())
        return _Forked(place, command[2])

    names = SimpleNamespace(Popen=start, PIPE=subprocess.PIPE, TimeoutExpired=subprocess.TimeoutExpired)
    child.subprocess = names  # pyright: ignore[reportAttributeAccessIssue]


@contextlib.contextmanager
def nursery() -> Generator[None]:
    """While this lasts, engines and ranks that this process starts are forked."""
    from octavo.engine import child

    folder = tempfile.mkdtemp(prefix="nursery-", dir="/tmp")
    place = f"{folder}/line"
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.equivalence.nursery", place],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"ready\n"
        _take_over(place)
        yield
    finally:
        child.subprocess = subprocess
        process.stdin.close()
        process.stdout.close()
        process.wait(20)
        shutil.rmtree(folder)


def _serve(place: str) -> None:
    """Fork for whoever asks, and tell of ends, until standard input ends."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
        door.bind(place)
        door.listen(16)
        _take_over(place)
        woken, waking = os.pipe()
        os.set_blocking(waking, False)
        signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        os.write(1, b"ready\n")
        ends: dict[int, int] = {}
        while True:
            readable, _, _ = select.select([0, door, woken], [], [])
            if woken in readable:
                os.read(woken, 4096)
                _tell(ends)
            if door in readable:
                line, _ = door.accept()
                with line:
                    data, files, _, _ = socket.recv_fds(line, 200, 2)
                    if len(files) != 2:
                        continue  # Whoever asked has ended.
                    told, end = files
                    pid = os.fork()
                    if pid == 0:
                        _be(data.decode(), told, [woken, waking, end, line.fileno(), door.fileno(), *ends.values()])
                    os.close(told)
                    ends[pid] = end
                    with contextlib.suppress(BrokenPipeError):  # The child of whoever has ended sees that itself.
                        line.send(str(pid).encode())
            if 0 in readable:
                break
    for pid in ends:
        os.kill(pid, signal.SIGKILL)


def _tell(ends: dict[int, int]) -> None:
    while ends:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            break
        end = ends.pop(pid)
        with contextlib.suppress(BrokenPipeError):
            os.write(end, _STATUS.pack(os.waitstatus_to_exitcode(status)))
        os.close(end)


def _be(module: str, told: int, strange: list[int]) -> None:
    """Become a child: run the module's `main`, and end."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        os.dup2(told, 0)
        for descriptor in {told, *strange}:
            os.close(descriptor)
        os.dup2(2, 1)
        status = importlib.import_module(module).main()
    except BaseException:  # noqa: BLE001 - told as a process of its own would
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    for name in _LOADED:
        importlib.import_module(name)
    num_threads = len(os.listdir("/proc/self/task"))
    assert num_threads == 1, f"a process of {num_threads} threads cannot be forked"
    gc.collect()
    gc.freeze()
    _serve(sys.argv[1])
