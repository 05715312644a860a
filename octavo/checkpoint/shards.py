"""Which files hold a Hugging Face folder's weights."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

from safetensors import SafetensorError, safe_open

from octavo.base.errors import CheckpointError
from octavo.checkpoint.json_file import JsonObject, read_json

ShardKind = Literal["safetensors", "pt"]

_INDEXES: Final = {"safetensors": "model.safetensors.index.json", "pt": "pytorch_model.bin.index.json"}
_PATTERNS: Final = {"safetensors": "*.safetensors", "pt": "pytorch_model*.bin"}
# What a model computes in, the widest first, by what safetensors calls it.
_DTYPES: Final = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


def weights_dtype(file: str) -> str:
    """Return the widest floating-point type of a shard's matrices; raises CheckpointError for a damaged file."""
    try:
        with safe_open(file, framework="np") as opened:
            tensors = [opened.get_slice(name) for name in opened.keys()]  # noqa: SIM118
            kinds = {tensor.get_dtype() for tensor in tensors if len(tensor.get_shape()) > 1}
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{file}: not a safetensors file, or damaged: {error}") from error
    return next((dtype for code, dtype in _DTYPES.items() if code in kinds), "float32")


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
    if Path(name).name != name or len(name.encode(errors="replace")) > 255:
        raise weight_map.fail(tensor, f"must be a file name in the same folder, not {name!r}")
    return name
