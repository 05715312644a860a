"""A reader of GGUF files, versions 2 and 3, over a memory map. Format: github.com/ggml-org/ggml, docs/gguf.md.

Opening walks the header only. Arrays (vocabularies are long) are stepped over and decoded when asked for. Every count,
length and offset is checked against the file before it is used, so a damaged file is a CheckpointError that names the place.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Final

from octavo.base.errors import CheckpointError
from octavo.checkpoint.ggml_types import GGML_TYPES

_STRING: Final = 8
_ARRAY: Final = 9
# Scalar value types by number: struct format and bytes. 7 is bool, one byte.
_SCALARS: Final = {
    0: ("B", 1), 1: ("b", 1), 2: ("H", 2), 3: ("h", 2), 4: ("I", 4), 5: ("i", 4),
    6: ("f", 4), 7: ("B", 1), 10: ("Q", 8), 11: ("q", 8), 12: ("d", 8),
}  # fmt: skip
_BOOL: Final = 7
_MAX_DIMENSIONS: Final = 8
# The fewest bytes that a metadata entry, and a tensor's, can take: absurd counts are refused before any loop.
_LEAST_ENTRY: Final = 8 + 4 + 1
_LEAST_TENSOR: Final = 8 + 4 + 4 + 8

Scalar = int | float | bool | str


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufArray:
    """An array still in the file: `count` values of value type `type`, the first at byte `offset`."""

    type: int
    count: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufTensor:
    """A tensor in the file. shape: outermost first, as torch has it. offset: from the start of the file."""

    name: str
    type: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class _Cursor:
    """Reads little-endian values one after another; `place` says what is being read, for errors."""

    def __init__(self, path: str, buffer: mmap.mmap, position: int = 0) -> None:
        self.path = path
        self.buffer = buffer
        self.size = len(buffer)
        self.position = position
        self.place = "header"

    def fail(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: {self.place}: {what}")

    def take(self, size: int) -> int:
        """Step over `size` bytes and return where they begin."""
        start = self.position
        if size > self.size - start:
            raise self.fail(f"needs {size} bytes at offset {start}, but the file ends at {self.size}")
        self.position = start + size
        return start

    def scalar(self, value_type: int) -> Scalar:
        code, size = _SCALARS[value_type]
        value: Scalar = struct.unpack_from("<" + code, self.buffer, self.take(size))[0]
        if value_type != _BOOL:
            return value
        if value not in (0, 1):
            raise self.fail(f"{value} is not a bool")
        return bool(value)

    def whole(self, value_type: int) -> int:
        value = self.scalar(value_type)
        assert isinstance(value, int)
        return value

    def text(self) -> str:
        start = self.take(self.whole(10))
        try:
            return self.buffer[start : self.position].decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.fail(f"is not UTF-8: {error.reason} at byte {error.start}") from error

    def value(self) -> Scalar | GgufArray:
        value_type = self.whole(4)
        if value_type == _ARRAY:
            return self.array()
        if value_type == _STRING:
            return self.text()
        if value_type not in _SCALARS:
            raise self.fail(f"unknown value type {value_type}")
        return self.scalar(value_type)

    def array(self) -> GgufArray:
        """Step over an array and return where it lies."""
        element, count = self.whole(4), self.whole(10)
        start = self.position
        if element in _SCALARS:
            self.take(count * _SCALARS[element][1])
        elif element == _STRING:
            self._skip_strings(count)
        else:
            raise self.fail(f"arrays of value type {element} are not supported")
        return GgufArray(type=element, count=count, offset=start)

    def _skip_strings(self, count: int) -> None:
        if count * 8 > self.size - self.position:
            raise self.fail(f"{count} strings do not fit in the file")
        unpack, buffer, position = struct.Struct("<Q").unpack_from, self.buffer, self.position
        try:
            for _ in repeat(None, count):
                position += 8 + unpack(buffer, position)[0]
        except (struct.error, OverflowError) as error:
            raise self.fail("a string reaches beyond the end of the file") from error
        self.take(position - self.position)


class GgufFile:
    """An open GGUF file. `metadata` holds scalars as they are and arrays as `GgufArray`; `tensors` is by name."""

    def __init__(self, path: str, buffer: mmap.mmap) -> None:
        self.path = path
        self._buffer = buffer
        cursor = _Cursor(path, buffer)
        self.version = _version(cursor)
        num_tensors, num_entries = cursor.whole(10), cursor.whole(10)
        left = cursor.size - cursor.position
        if num_entries * _LEAST_ENTRY + num_tensors * _LEAST_TENSOR > left:
            raise cursor.fail(
                f"{num_entries} keys and {num_tensors} tensors do not fit in the file's {cursor.size} bytes"
            )
        self.metadata = _read_metadata(cursor, num_entries)
        self.tensors = _read_tensors(cursor, num_tensors, self.integer("general.alignment", 32))

    def data(self, name: str) -> memoryview:
        """Return a tensor's raw bytes, read-only and not copied."""
        tensor = self.tensors[name]
        return memoryview(self._buffer)[tensor.offset : tensor.offset + tensor.nbytes]

    def text(self, key: str, default: str | None = None) -> str:
        """Return a string; raises CheckpointError if it is missing without a default, or not a string."""
        found = self._found(key, default)
        if isinstance(found, str):
            return found
        raise self._wrong(key, "a string", found)

    def integer(self, key: str, default: int | None = None) -> int:
        """Return a whole number; raises CheckpointError as `text` does."""
        found = self._found(key, default)
        if isinstance(found, int) and not isinstance(found, bool):
            return found
        raise self._wrong(key, "a whole number", found)

    def number(self, key: str, default: float | None = None) -> float:
        """Return a number; raises CheckpointError as `text` does."""
        found = self._found(key, default)
        if isinstance(found, (int, float)) and not isinstance(found, bool):
            return float(found)
        raise self._wrong(key, "a number", found)

    def flag(self, key: str, default: bool | None = None) -> bool:
        """Return a bool; raises CheckpointError as `text` does."""
        found = self._found(key, default)
        if isinstance(found, bool):
            return found
        raise self._wrong(key, "true or false", found)

    def strings(self, key: str) -> list[str]:
        """Decode an array of strings; raises CheckpointError if it is missing or something else."""
        array = self._array(key)
        if array.type != _STRING:
            raise CheckpointError(f"{self.path}: {key}: must be an array of strings")
        raw, position = self._buffer, array.offset
        unpack = struct.Struct("<Q").unpack_from
        found: list[str] = []
        append: Callable[[str], None] = found.append
        try:
            for _ in repeat(None, array.count):
                start = position + 8
                position = start + unpack(raw, position)[0]
                append(raw[start:position].decode("utf-8"))
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{self.path}: {key}[{len(found)}]: is not UTF-8: {error.reason}") from error
        return found

    def numbers(self, key: str) -> list[int | float]:
        """Decode an array of numbers; raises CheckpointError if it is missing or something else."""
        array = self._array(key)
        if array.type not in _SCALARS:
            raise CheckpointError(f"{self.path}: {key}: must be an array of numbers")
        return list(struct.unpack_from(f"<{array.count}{_SCALARS[array.type][0]}", self._buffer, array.offset))

    def _array(self, key: str) -> GgufArray:
        found = self.metadata.get(key)
        if not isinstance(found, GgufArray):
            raise CheckpointError(f"{self.path}: {key}: " + ("is missing" if found is None else "must be an array"))
        return found

    def _found(self, key: str, default: Scalar | None) -> Scalar | GgufArray:
        found = self.metadata.get(key, default)
        if found is None:
            raise CheckpointError(f"{self.path}: {key}: is missing")
        return found

    def _wrong(self, key: str, wanted: str, found: Scalar | GgufArray) -> CheckpointError:
        what = "an array" if isinstance(found, GgufArray) else repr(found)
        return CheckpointError(f"{self.path}: {key}: must be {wanted}, not {what}")


def read_gguf(path: str) -> GgufFile:
    """Open a GGUF file and read its header; raises CheckpointError naming the file and what in it is wrong."""
    try:
        with Path(path).open("rb") as file:
            buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
    return GgufFile(path, buffer)


def _version(cursor: _Cursor) -> int:
    if cursor.buffer[:4] != b"GGUF":
        raise cursor.fail("not a GGUF file: it does not begin with 'GGUF'")
    cursor.take(4)
    version = cursor.whole(4)
    if version not in (2, 3):
        raise cursor.fail(f"GGUF version {version} is not supported, only 2 and 3 (little-endian)")
    return version


def _read_metadata(cursor: _Cursor, count: int) -> dict[str, Scalar | GgufArray]:
    metadata: dict[str, Scalar | GgufArray] = {}
    for index in range(count):
        cursor.place = f"metadata key {index}"
        key = cursor.text()
        if key in metadata:
            raise cursor.fail(f"{key!r} occurs twice")
        cursor.place = key
        metadata[key] = cursor.value()
    return metadata


def _read_tensors(cursor: _Cursor, count: int, alignment: int) -> dict[str, GgufTensor]:
    if alignment <= 0:
        raise CheckpointError(f"{cursor.path}: general.alignment: must be positive, not {alignment}")
    entries = [_read_tensor(cursor, index) for index in range(count)]
    base = -(-cursor.position // alignment) * alignment
    tensors: dict[str, GgufTensor] = {}
    for name, number, shape, offset in entries:
        cursor.place = f"tensor {name}"
        if name in tensors:
            raise cursor.fail("occurs twice")
        if offset % alignment:
            raise cursor.fail(f"offset {offset} is not a multiple of the alignment {alignment}")
        kind = GGML_TYPES.get(number)
        if kind is None:
            raise cursor.fail(f"unknown ggml type {number}")
        if not shape or shape[-1] % kind.block:
            raise cursor.fail(f"rows of {shape[-1:]} values cannot be cut into {kind.name} blocks of {kind.block}")
        size = math.prod(shape) // kind.block * kind.nbytes
        if base + offset + size > cursor.size:
            raise cursor.fail(f"its {size} bytes at {base + offset} reach beyond the end of the file ({cursor.size})")
        tensors[name] = GgufTensor(name=name, type=kind.name, shape=shape, offset=base + offset, nbytes=size)
    return tensors


def _read_tensor(cursor: _Cursor, index: int) -> tuple[str, int, tuple[int, ...], int]:
    """Return (name, ggml type, shape outermost first, offset inside the data section)."""
    cursor.place = f"tensor {index}"
    name = cursor.text()
    cursor.place = f"tensor {name}"
    num_dimensions = cursor.whole(4)
    if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
        raise cursor.fail(f"{num_dimensions} dimensions; 1 to {_MAX_DIMENSIONS} are possible")
    shape = tuple(cursor.whole(10) for _ in range(num_dimensions))[::-1]
    return name, cursor.whole(4), shape, cursor.whole(10)
