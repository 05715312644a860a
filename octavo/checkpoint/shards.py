"""Which files hold a Hugging Face folder's weights, and what tensors lie in those that are safetensors.

Format: github.com/huggingface/safetensors. What a .bin file holds is only known to torch (`worker/loader/weights.py`).
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from octavo.base.errors import CheckpointError
from octavo.checkpoint.json_file import JsonObject, read_json

ShardKind = Literal["safetensors", "pt"]

_INDEXES: Final = {"safetensors": "model.safetensors.index.json", "pt": "pytorch_model.bin.index.json"}
_PATTERNS: Final = {"safetensors": "*.safetensors", "pt": "pytorch_model*.bin"}
# Safetensors type names to torch's, and bytes a value.
DTYPES: Final = {
    "F64": ("float64", 8), "F32": ("float32", 4), "F16": ("float16", 2), "BF16": ("bfloat16", 2),
    "I64": ("int64", 8), "I32": ("int32", 4), "I16": ("int16", 2), "I8": ("int8", 1),
    "U64": ("uint64", 8), "U32": ("uint32", 4), "U16": ("uint16", 2), "U8": ("uint8", 1), "BOOL": ("bool", 1),
    "F8_E4M3": ("float8_e4m3fn", 1), "F8_E5M2": ("float8_e5m2", 1), "F8_E8M0": ("float8_e8m0fnu", 1),
}  # fmt: skip
_LARGEST_HEADER: Final = 100 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardTensor:
    """A tensor in a shard. dtype: torch's name without "torch.". offset: from the start of the file, in bytes."""

    name: str
    file: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


def list_tensors(files: Sequence[str]) -> dict[str, ShardTensor]:
    """Return name -> where it lies, of all shards; raises CheckpointError for a damaged file or a name in two shards."""
    found: dict[str, ShardTensor] = {}
    for file in files:
        for tensor in _read_header(file):
            if tensor.name in found:
                raise CheckpointError(f"{file}: tensor {tensor.name} is also in {found[tensor.name].file}")
            found[tensor.name] = tensor
    return found


def shard_files(folder: Path, kind: ShardKind = "safetensors", *, complete: bool = True) -> tuple[str, ...]:
    """Return the absolute paths of a folder's shards, in order; empty if it has none.

    The index wins over what lies about. A shard that it names and that is not there is a CheckpointError, if `complete`.
    """
    owners = shard_of_tensors(folder, kind)
    if owners is not None:
        names = sorted(set(owners.values()))
        missing = [name for name in names if not (folder / name).is_file()]
        if missing and complete:
            raise CheckpointError(f"{folder}: shard {missing[0]} is missing ({len(missing)} of {len(names)} are)")
        return tuple(str(folder / name) for name in names if name not in missing)
    names = sorted(path.name for path in folder.glob(_PATTERNS[kind]))
    # Some repositories carry the same weights a second time, under the names of the maker's own code.
    own = [name for name in names if not name.startswith("consolidated")]
    return tuple(str(folder / name) for name in own or names)


def shard_of_tensors(folder: Path, kind: ShardKind) -> dict[str, str] | None:
    """Return the folder's index, tensor -> file name; None if there is none."""
    index = folder / _INDEXES[kind]
    if not index.is_file():
        return None
    weight_map = read_json(index).object("weight_map")
    if weight_map is None:
        raise CheckpointError(f"{index}: 'weight_map' is missing")
    return {tensor: _shard_name(weight_map, tensor) for tensor in weight_map.values}


def _shard_name(weight_map: JsonObject, tensor: str) -> str:
    name = weight_map.text(tensor)
    if Path(name).name != name:
        raise weight_map.fail(tensor, f"must be a file name in the same folder, not {name!r}")
    return name


def _read_header(file: str) -> list[ShardTensor]:
    try:
        with Path(file).open("rb") as opened:
            size = opened.seek(0, 2)
            opened.seek(0)
            (length,) = struct.unpack("<Q", opened.read(8))
            if length > min(_LARGEST_HEADER, size - 8):
                raise CheckpointError(f"{file}: damaged: a header of {length} bytes in a file of {size}")
            header: Any = json.loads(opened.read(length))
    except (OSError, ValueError, struct.error, RecursionError) as error:
        raise CheckpointError(f"{file}: not a safetensors file, or damaged: {error}") from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{file}: damaged: the header is not a JSON object")
    entries = JsonObject(file, header)
    return [_tensor(entries, name, 8 + length, size) for name in header if name != "__metadata__"]


def _tensor(entries: JsonObject, name: str, base: int, size: int) -> ShardTensor:
    entry = entries.object(name)
    if entry is None:
        raise entries.fail(name, "must be an object, not null")
    code = entry.text("dtype")
    if code not in DTYPES:
        raise entry.fail("dtype", f"is {code!r}, which is not known")
    dtype, itemsize = DTYPES[code]
    shape, offsets = _sizes(entry, "shape"), _sizes(entry, "data_offsets")
    nbytes = math.prod(shape) * itemsize
    if len(offsets) != 2 or offsets[1] - offsets[0] != nbytes:
        raise entry.fail("data_offsets", f"are {list(offsets)}, but {dtype} {list(shape)} takes {nbytes} bytes")
    if base + offsets[1] > size:
        raise entry.fail("data_offsets", f"reach byte {base + offsets[1]}, beyond the end of the file ({size})")
    return ShardTensor(name=name, file=entries.place, dtype=dtype, shape=shape, offset=base + offsets[0], nbytes=nbytes)


def _sizes(entry: JsonObject, key: str) -> tuple[int, ...]:
    values = entry.list(key)
    if values is None or not all(isinstance(v, int) and not isinstance(v, bool) and v >= 0 for v in values):
        raise entry.fail(key, f"must be a list of whole numbers >= 0, not {values!r}")
    return tuple(values)
