"""A reader of GGUF files, versions 2 and 3, over a memory map. Format: github.com/ggml-org/ggml, docs/gguf.md.

Opening walks the header only. Arrays (vocabularies are long) are stepped over and decoded when asked for. Every count,
length and offset is checked against the file before it is used, so a damaged file is a CheckpointError that names the place.
A model in several files (NAME-00001-of-00003.gguf) is opened by its first, which holds all metadata.
"""

from __future__ import annotations

import math
import mmap
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any, Final

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
_PART: Final = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)
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
    """A tensor in a file. shape: outermost first, as torch has it. offset: from the start of the file."""

    name: str
    file: str
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
    """An open GGUF file. `metadata` holds scalars as they are and arrays as `GgufArray`; `tensors` is by name.

    Of a model in several files, it is the first one with the tensors of all; `files` are their paths in order.
    """

    def __init__(self, path: str, buffer: mmap.mmap) -> None:
        self.path = path
        self.files = (path,)
        self._buffer = buffer
        self._buffers = {path: buffer}
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
        return memoryview(self._buffers[tensor.file])[tensor.offset : tensor.offset + tensor.nbytes]

    def join(self, part: GgufFile) -> None:
        """Take in the tensors of the next part of the same model."""
        for name, tensor in part.tensors.items():
            if name in self.tensors:
                raise CheckpointError(f"{part.path}: tensor {name} is also in {self.tensors[name].file}")
            self.tensors[name] = tensor
        self.files += part.files
        self._buffers |= part._buffers

    def text(self, key: str, default: str | None = None) -> str:
        """Return a string; raises CheckpointError if it is missing without a default, or not a string."""
        return self._typed(key, default, str, "a string")

    def integer(self, key: str, default: int | None = None) -> int:
        """Return a whole number; raises CheckpointError as `text` does."""
        return self._typed(key, default, int, "a whole number")

    def number(self, key: str, default: float | None = None) -> float:
        """Return a number; raises CheckpointError as `text` does."""
        return float(self._typed(key, default, int | float, "a number"))

    def flag(self, key: str, default: bool | None = None) -> bool:
        """Return a bool; raises CheckpointError as `text` does."""
        return self._typed(key, default, bool, "true or false")

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

    def _typed(self, key: str, default: Scalar | None, kind: Any, wanted: str) -> Any:
        found = self.metadata.get(key, default)
        if found is None:
            raise CheckpointError(f"{self.path}: {key}: is missing")
        if isinstance(found, kind) and isinstance(found, bool) == (kind is bool):
            return found
        what = "an array" if isinstance(found, GgufArray) else repr(found)
        raise CheckpointError(f"{self.path}: {key}: must be {wanted}, not {what}")


def read_gguf(path: str) -> GgufFile:
    """Open a GGUF file, and the other parts of its model if it is the first of several, and read their headers.

    Raises CheckpointError naming the file and what in it is wrong, or the part that is missing.
    """
    first = _open(path)
    count = first.integer("split.count", 0)
    if count <= 1:
        return first
    paths = part_paths(path, count)
    if first.integer("split.no") != 0:
        raise CheckpointError(f"{path}: is a later part of a model in {count} files; name the first, {paths[0]}")
    missing = [each for each in paths if not Path(each).is_file()]
    if missing:
        raise CheckpointError(f"{path}: part {missing[0]} is missing ({len(missing)} of {count} are)")
    for index, each in enumerate(paths[1:], 1):
        part = _open(each)
        if part.integer("split.no", -1) != index or part.integer("split.count", -1) != count:
            raise CheckpointError(f"{each}: split.no and split.count do not say that it is part {index + 1} of {count}")
        first.join(part)
    expected = first.integer("split.tensors.count", len(first.tensors))
    if len(first.tensors) != expected:
        raise CheckpointError(f"{path}: split.tensors.count is {expected}, but the parts hold {len(first.tensors)}")
    return first


def part_paths(path: str, count: int) -> list[str]:
    """Return the names of all parts of a model, given one's; raises CheckpointError if it is not named as a part."""
    match = _PART.fullmatch(path)
    if match is None or int(match[3]) != count:
        raise CheckpointError(f"{path}: is one of {count} parts, but not named so (NAME-00001-of-{count:05}.gguf)")
    return [f"{match[1]}-{index:05}-of-{match[3]}.gguf" for index in range(1, count + 1)]


def is_later_part(name: str) -> bool:
    """Whether a file's name says that it is not the first part of a model in several files."""
    match = _PART.fullmatch(name)
    return match is not None and int(match[2]) != 1


def _open(path: str) -> GgufFile:
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
        tensors[name] = GgufTensor(
            name=name, file=cursor.path, type=kind.name, shape=shape, offset=base + offset, nbytes=size
        )
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
