"""Where chat templates run: a process that the operating system holds to a limit of memory and of time.

A template is a program by a stranger. Jinja's sandbox keeps it from files, not from `'a' * 3000000000`, from loops in loops
or from macros that call themselves; and there is no end of filters and methods that make much of little. So the limits are
the system's: whoever passes them fails or dies, and the next chat gets a new process.

`python -m octavo.frontend.text.template_process` reads renderings from its standard input until that ends.
"""

from __future__ import annotations

import contextlib
import functools
import math
import resource
import signal
import struct
import subprocess
import sys
import threading
import time
import weakref
from typing import IO, Any

import msgspec

from octavo.base.errors import InvalidRequestError, OctavoError
from octavo.frontend.text.templating import make_environment, render

_MEMORY_BYTES = 2**30
_SECONDS = 3  # The longest honest chats take less than one.
_OUT_OF_MEMORY = 3  # An exit status.
_CACHED_TEMPLATES = 8
_LENGTH = struct.Struct("!Q")


class _Rendering(msgspec.Struct, frozen=True, kw_only=True):
    source: str
    variables: dict[str, Any]
    max_characters: int


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    """text: the prompt. message, field: why there is none."""

    text: str = ""
    message: str = ""
    field: str | None = None


class TemplateProcess:
    """The parent's handle. Renderings from several threads go one after the other.

    seconds: of the processor, that one chat may take.
    """

    def __init__(self, seconds: int = _SECONDS) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._end: weakref.finalize[..., Any] | None = None

    def start(self) -> None:
        """Start the process if there is none, and return at once. The first rendering does it otherwise."""
        with self._lock:
            self._running()

    def render(self, source: str, variables: dict[str, Any], max_characters: int) -> str:
        """Return the prompt; raises InvalidRequestError if the template refuses the chat, or passes a limit."""
        try:
            request = msgspec.msgpack.encode(
                _Rendering(source=source, variables=variables, max_characters=max_characters)
            )
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise InvalidRequestError(f"a chat must be made of what JSON can say: {error}", field="messages") from error
        with self._lock:
            child = self._running()
            try:
                assert child.stdin is not None
                assert child.stdout is not None
                _write(child.stdin, request)
                answer = msgspec.msgpack.decode(_read(child.stdout), type=_Answer)
            except (BrokenPipeError, EOFError) as error:
                raise self._ended(child.wait()) from error
            except BaseException:
                self.stop()  # Its answer must not be taken for another chat's.
                raise
        if answer.message:
            raise InvalidRequestError(answer.message, field=answer.field)
        return answer.text

    def stop(self) -> None:
        """End the process; idempotent. Another rendering starts a new one."""
        self._child = None
        if self._end is not None:
            self._end()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._child is None or self._child.poll() is not None:
            self.stop()
            # In a session of its own: Ctrl-C is for the parent alone.
            self._child = subprocess.Popen(
                [sys.executable, "-m", __name__, str(self._seconds)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
            self._end = weakref.finalize(self, _kill, self._child)
        return self._child

    def _ended(self, status: int) -> OctavoError:
        """Return what to say of a process that ended instead of answering."""
        if status < 0 or status == _OUT_OF_MEMORY:
            return InvalidRequestError(
                f"the chat template is at fault: for this chat it takes more than {self._seconds} seconds or "
                f"{_MEMORY_BYTES // 2**20} MiB of memory",
                field="chat_template",
            )
        return OctavoError(f"the process that renders chats ended with status {status}")


def _kill(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    for pipe in (child.stdin, child.stdout):
        with contextlib.suppress(BrokenPipeError):
            assert pipe is not None
            pipe.close()
    child.wait()


def _write(pipe: IO[bytes], data: bytes) -> None:
    pipe.write(_LENGTH.pack(len(data)))
    pipe.write(data)
    pipe.flush()


def _read(pipe: IO[bytes]) -> bytes:
    """Return the next record; raises EOFError when there is none."""
    head = pipe.read(_LENGTH.size)
    data = pipe.read(_LENGTH.unpack(head)[0]) if len(head) == _LENGTH.size else b""
    if not data:
        raise EOFError
    return data


def _limit(kind: int, amount: int) -> None:
    """Lower a limit of this process, or raise it again as far as the system lets it."""
    _, most = resource.getrlimit(kind)
    resource.setrlimit(kind, (amount if most == resource.RLIM_INFINITY else min(amount, most), most))


def main() -> int:
    """Render until the parent is gone; returns the exit status. Takes the seconds for one chat."""
    seconds = int(sys.argv[1])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # The parent decides.
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_AS, _MEMORY_BYTES)
    compiled = functools.lru_cache(_CACHED_TEMPLATES)(make_environment().from_string)
    try:
        while True:
            request = msgspec.msgpack.decode(_read(sys.stdin.buffer), type=_Rendering)
            _limit(resource.RLIMIT_CPU, math.ceil(time.process_time()) + seconds)
            try:
                answer = _Answer(text=render(compiled(request.source), request.variables, request.max_characters))
            except InvalidRequestError as error:
                answer = _Answer(message=error.message, field=error.field)
            _write(sys.stdout.buffer, msgspec.msgpack.encode(answer))
            del request, answer  # Not kept while it waits for the next.
    except EOFError:
        return 0
    except MemoryError:
        return _OUT_OF_MEMORY


if __name__ == "__main__":
    raise SystemExit(main())
