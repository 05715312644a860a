"""Shards are listed, and damage or a missing shard is named."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from octavo.base.errors import CheckpointError
from octavo.checkpoint.shards import list_tensors, shard_files


def shard(path: Path, **tensors: Any) -> str:
    save_file(tensors, str(path))
    return str(path)


def raw_shard(path: Path, header: Any, data: bytes = b"") -> str:
    raw = json.dumps(header).encode() if not isinstance(header, bytes) else header
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + data)
    return str(path)


def test_tensors_of_all_shards(tmp_path: Path):
    first = shard(tmp_path / "a.safetensors", x=np.arange(6, dtype=np.float32).reshape(2, 3))
    second = shard(tmp_path / "b.safetensors", y=np.zeros((4,), np.float16), z=np.zeros((), np.int64))
    found = list_tensors([first, second])
    assert {name: (t.file, t.dtype, t.shape) for name, t in found.items()} == {
        "x": (first, "float32", (2, 3)),
        "y": (second, "float16", (4,)),
        "z": (second, "int64", ()),
    }
    raw = Path(first).read_bytes()[found["x"].offset : found["x"].offset + found["x"].nbytes]
    assert np.frombuffer(raw, np.float32).tolist() == [0, 1, 2, 3, 4, 5]


def test_a_name_in_two_shards_is_an_error(tmp_path: Path):
    files = [shard(tmp_path / f"{name}.safetensors", x=np.zeros(2, np.float32)) for name in "ab"]
    with pytest.raises(CheckpointError, match=r"b\.safetensors: tensor x is also in .*a\.safetensors"):
        list_tensors(files)


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"{", "damaged"),
        (b"[]", "not a JSON object"),
        ({"x": ENTRY | {"dtype": "F31"}}, "'dtype' is 'F31'"),
        ({"x": ENTRY | {"shape": [-2]}}, "'shape' must be"),
        ({"x": ENTRY | {"shape": [3]}}, "takes 12 bytes"),
        ({"x": ENTRY | {"data_offsets": [4, 12]}}, "beyond the end"),
        ({"x": ENTRY | {"data_offsets": [0]}}, "'data_offsets' are [0]"),
        ({"x": None}, "'x' must be an object"),
    ],
)
def test_damage_is_named(tmp_path: Path, header: Any, message: str):
    file = raw_shard(tmp_path / "a.safetensors", header, bytes(8))
    with pytest.raises(CheckpointError) as error:
        list_tensors([file])
    assert "a.safetensors" in error.value.message
    assert message in error.value.message


@pytest.mark.parametrize("raw", [b"", b"abc", struct.pack("<Q", 2**60), struct.pack("<Q", 50) + b"{}"])
def test_a_cut_file_is_named(tmp_path: Path, raw: bytes):
    (tmp_path / "a.safetensors").write_bytes(raw)
    with pytest.raises(CheckpointError, match=r"a\.safetensors"):
        list_tensors([str(tmp_path / "a.safetensors")])


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


@pytest.mark.parametrize("name", ["../a.safetensors", "/etc/passwd", 3])
def test_the_index_names_files_of_its_own_folder(tmp_path: Path, name: object):
    index(tmp_path, {"x": name})
    with pytest.raises(CheckpointError, match="'x' must be"):
        shard_files(tmp_path)


def test_a_second_copy_of_the_weights_is_left_out(tmp_path: Path):
    for name in ("consolidated.safetensors", "model.safetensors"):
        (tmp_path / name).touch()
    assert [Path(file).name for file in shard_files(tmp_path)] == ["model.safetensors"]
