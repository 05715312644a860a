"""Shards are found, and one that is damaged or missing is named."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from octavo.base.errors import CheckpointError
from octavo.checkpoint.shards import shard_files, weights_dtype


def shard(path: Path, **tensors: Any) -> str:
    save_file(tensors, str(path))
    return str(path)


def raw_shard(path: Path, header: Any, data: bytes = b"") -> str:
    raw = json.dumps(header).encode() if not isinstance(header, bytes) else header
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + data)
    return str(path)


def test_the_widest_type_of_a_matrix_counts(tmp_path: Path):
    file = shard(tmp_path / "a.safetensors", a=np.zeros((2, 3), np.float16), norm=np.zeros(4, np.float32))
    assert weights_dtype(file) == "float16"
    file = shard(tmp_path / "b.safetensors", a=np.zeros((2, 3), np.float16), router=np.zeros((2, 2), np.float32))
    assert weights_dtype(file) == "float32"
    assert weights_dtype(shard(tmp_path / "c.safetensors", a=np.zeros((2, 2), np.int64))) == "float32"
    entry = {"dtype": "BF16", "shape": [1, 2], "data_offsets": [0, 4]}
    assert weights_dtype(raw_shard(tmp_path / "d.safetensors", {"x": entry}, bytes(4))) == "bfloat16"


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    "header",
    [
        b"{",
        b"[]",
        {"x": ENTRY | {"dtype": "F31"}},
        {"x": ENTRY | {"shape": [-2]}},
        {"x": ENTRY | {"shape": [3]}},
        {"x": ENTRY | {"data_offsets": [4, 12]}},
        {"x": ENTRY | {"data_offsets": [0]}},
        {"x": None},
    ],
)
def test_damage_is_an_error(tmp_path: Path, header: Any):
    file = raw_shard(tmp_path / "a.safetensors", header, bytes(8))
    with pytest.raises(CheckpointError, match=r"a\.safetensors: not a safetensors file, or damaged: "):
        weights_dtype(file)


@pytest.mark.parametrize("raw", [b"", b"abc", struct.pack("<Q", 2**60), struct.pack("<Q", 50) + b"{}"])
def test_a_cut_file_is_named(tmp_path: Path, raw: bytes):
    (tmp_path / "a.safetensors").write_bytes(raw)
    with pytest.raises(CheckpointError, match=r"a\.safetensors"):
        weights_dtype(str(tmp_path / "a.safetensors"))


def index(folder: Path, weight_map: dict[str, Any]) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_the_index_wins(tmp_path: Path):
    for name in ("a", "b", "stray"):
        (tmp_path / f"{name}.safetensors").touch()
    assert [Path(file).name for file in shard_files(tmp_path)] == [
        "a.safetensors",
        "b.safetensors",
        "stray.safetensors",
    ]
    index(tmp_path, {"y": "b.safetensors", "x": "a.safetensors", "z": "b.safetensors"})
    assert shard_files(tmp_path) == (str(tmp_path / "a.safetensors"), str(tmp_path / "b.safetensors"))


def test_a_missing_shard_is_named(tmp_path: Path):
    (tmp_path / "a.safetensors").touch()
    index(tmp_path, {"x": "a.safetensors", "y": "lost.safetensors"})
    with pytest.raises(CheckpointError, match=r"shard lost\.safetensors is missing \(1 of 2 are\)"):
        shard_files(tmp_path)
    assert shard_files(tmp_path, complete=False) == (str(tmp_path / "a.safetensors"),)


@pytest.mark.parametrize("name", ["../a.safetensors", "/etc/passwd", 3, "a" * 300])
def test_the_index_names_files_of_its_own_folder(tmp_path: Path, name: object):
    index(tmp_path, {"x": name})
    with pytest.raises(CheckpointError, match="'x' must be"):
        shard_files(tmp_path)


def test_a_second_copy_of_the_weights_is_left_out(tmp_path: Path):
    for name in ("consolidated.safetensors", "model.safetensors"):
        (tmp_path / name).touch()
    assert [Path(file).name for file in shard_files(tmp_path)] == ["model.safetensors"]
