"""The files of a batch: lines in, one line out for each, and what an interrupted run had done already.

Answers are written as they come, in any order; the number of its input line is in each one's `id`. So a run that was stopped
knows from its output alone which lines are left, and keeps four bytes for each line that is done.
"""

from __future__ import annotations

import fcntl
import io
import os
import zlib
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from octavo.base.errors import InvalidRequestError, OctavoError

_PREFIX = "batch-"


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the input."""

    custom_id: str
    method: Literal["POST"] = "POST"
    url: str
    body: msgspec.Raw


class _Named(msgspec.Struct, frozen=True, kw_only=True):
    """The id of any line."""

    custom_id: str | None = None


class _Answered(_Named, frozen=True, kw_only=True):
    """What is read back of a line of the output."""

    id: str


_asked = msgspec.json.Decoder(Asked)
_named = msgspec.json.Decoder(_Named)
_answered = msgspec.json.Decoder(_Answered)


def read_asked(line: bytes) -> Asked:
    """Return the request in a line; raises InvalidRequestError that says what is wrong with it."""
    try:
        asked = _asked.decode(line)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequestError(f"the line is no request: {error}") from error
    if not asked.url.startswith("/v1/"):
        raise InvalidRequestError(f"url must begin with /v1/, not {asked.url!r}", field="url")
    return asked


def custom_id_of(line: bytes) -> str | None:
    """Return a line's custom_id, None where it has none."""
    try:
        return _named.decode(line).custom_id
    except (msgspec.DecodeError, RecursionError):
        return None


def count_lines(path: Path) -> int:
    """Return how many lines a file has."""
    number, last = 0, b"\n"
    with path.open("rb") as file:
        while block := file.read(2**20):
            number += block.count(b"\n")
            last = block[-1:]
    return number + (last != b"\n")


def read_lines(path: Path, limit: int) -> Iterator[tuple[int, bytes | None]]:
    """Yield the number of each line that is not blank, from 1 on, and its bytes; None for one longer than `limit`."""
    with path.open("rb") as file:
        number = 0
        while line := file.readline(limit + 1):
            number += 1
            if len(line) > limit and not line.endswith(b"\n"):
                while line and not line.endswith(b"\n"):
                    line = file.readline(limit)
                yield number, None
            elif line.strip():
                yield number, line


class BatchOutput:
    """The output file, locked for this run. What a killed run left in the middle of a line is cut off.

    num_done: lines that it answers already. Raises OctavoError if another run writes to it, or it is no batch's output.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        # Unbuffered: a line is with the operating system before the next is begun, whatever becomes of this process.
        self._file = io.FileIO(path, "a+")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._file.close()
            raise OctavoError(f"another run writes to {path}") from error
        self._done = array("I")
        self.num_done = 0
        self._read_back()

    def has(self, number: int, line: bytes | None) -> bool:
        """Whether the line with this number is answered; raises OctavoError if the answer is to another line."""
        mark = self._done[number] if number < len(self._done) else 0
        if mark and mark != _mark(None if line is None else custom_id_of(line)):
            raise OctavoError(f"{self._path} holds the answers to another file: see line {number}; choose another name")
        return mark != 0

    def write(self, number: int, custom_id: str | None, response: Any, error: Any) -> None:
        """Add the answer to line `number`."""
        record = {"id": f"{_PREFIX}{number}", "custom_id": custom_id, "response": response, "error": error}
        line = msgspec.json.encode(record) + b"\n"
        try:
            written = self._file.write(line)
        except OSError as problem:
            raise OctavoError(f"cannot write to {self._path}: {problem.strerror}") from problem
        if written != len(line):
            raise OctavoError(f"cannot write to {self._path}: no space is left")

    def close(self) -> None:
        """Close the file and let other runs have it."""
        self._file.close()

    def _read_back(self) -> None:
        end = 0
        with self._path.open("rb") as lines:
            for line in lines:
                if not line.endswith(b"\n"):
                    break
                end += len(line)
                self._note(line)
        os.ftruncate(self._file.fileno(), end)

    def _note(self, line: bytes) -> None:
        try:
            answer = _answered.decode(line)
            number = int(answer.id.removeprefix(_PREFIX))
        except (msgspec.DecodeError, ValueError) as error:
            self._file.close()
            raise OctavoError(f"{self._path} exists and is no output of a batch; choose another name") from error
        if number >= len(self._done):
            self._done.extend([0] * (number + 1 - len(self._done)))
        self.num_done += self._done[number] == 0
        self._done[number] = _mark(answer.custom_id)


def _mark(custom_id: str | None) -> int:
    """Return a number by which a custom_id is known again, never 0."""
    return zlib.crc32((custom_id or "").encode()) | 1
