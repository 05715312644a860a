"""The GGUF reader: typed metadata, tensors in place, and every kind of damage named."""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.base.errors import CheckpointError
from octavo.checkpoint.ggml_types import GGML_TYPES
from octavo.checkpoint.gguf import GgufArray, read_gguf
from tests.host.checkpoint.gguf_writer import embedding, gguf, llama_metadata, text, write

SMALL = gguf(
    {"general.architecture": "llama", "a.flag": True, "a.float": 0.5, "a.words": ["x", "yé", ""], "a.ints": [3, -1]},
    [("t", 0, (2, 3), struct.pack("<6f", *range(6))), ("q", 3, (1, 64), b"\7" * 40)],
)


def opened(tmp_path: Path, raw: bytes):
    path = tmp_path / "m.gguf"
    path.write_bytes(raw)
    return read_gguf(str(path))


def test_metadata_is_typed(tmp_path: Path):
    file = opened(tmp_path, SMALL)
    assert file.version == 3
    assert file.text("general.architecture") == "llama"
    assert file.flag("a.flag") is True
    assert file.number("a.float") == 0.5
    assert file.strings("a.words") == ["x", "yé", ""]
    assert file.numbers("a.ints") == [3, -1]
    assert isinstance(file.metadata["a.words"], GgufArray)
    assert file.integer("absent", 4) == 4


def test_tensors_have_torch_order_and_place(tmp_path: Path):
    file = opened(tmp_path, SMALL)
    tensor = file.tensors["t"]
    assert (tensor.type, tensor.shape, tensor.nbytes) == ("F32", (2, 3), 24)
    assert np.frombuffer(file.data("t"), np.float32).tolist() == [0, 1, 2, 3, 4, 5]
    assert (file.tensors["q"].type, file.tensors["q"].nbytes, bytes(file.data("q"))) == ("Q4_1", 40, b"\7" * 40)
    assert file.data("q").readonly


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda f: f.text("a.flag"), "a.flag: must be a string, not True"),
        (lambda f: f.integer("a.flag"), "a.flag: must be a whole number, not True"),
        (lambda f: f.number("a.words"), "a.words: must be a number, not an array"),
        (lambda f: f.flag("absent"), "absent: is missing"),
        (lambda f: f.strings("a.ints"), "a.ints: must be an array of strings"),
        (lambda f: f.numbers("a.words"), "a.words: must be an array of numbers"),
        (lambda f: f.strings("a.float"), "a.float: must be an array"),
    ],
)
def test_wrong_types_name_file_and_key(tmp_path: Path, read, message: str):
    file = opened(tmp_path, SMALL)
    with pytest.raises(CheckpointError) as error:
        read(file)
    assert str(tmp_path / "m.gguf") in error.value.message
    assert message in error.value.message


def replaced(old: bytes, new: bytes) -> bytes:
    assert SMALL.count(old) == 1
    return SMALL.replace(old, new)


DAMAGED = {
    "empty": (b"", "cannot be read"),
    "not gguf": (b"PK\3\4" + bytes(100), "not a GGUF file"),
    "version 1": (gguf({}, version=1), "version 1"),
    "big-endian": (b"GGUF" + struct.pack(">I", 3) + bytes(16), "version 50331648"),
    "absurd key count": (SMALL[:16] + struct.pack("<Q", 2**62) + SMALL[24:], "do not fit"),
    "absurd tensor count": (SMALL[:8] + struct.pack("<Q", 2**40) + SMALL[16:], "do not fit"),
    "absurd string": (replaced(text("llama"), struct.pack("<Q", 2**63) + b"llama"), "general.architecture"),
    "absurd strings": (replaced(struct.pack("<IIQ", 9, 8, 3), struct.pack("<IIQ", 9, 8, 2**60)), "a.words"),
    "absurd inner string": (replaced(text("yé"), struct.pack("<Q", 2**64 - 1) + "yé".encode()), "a.words"),
    "absurd numbers": (replaced(struct.pack("<IIQ", 9, 5, 2), struct.pack("<IIQ", 9, 5, 2**63)), "a.ints"),
    "array of arrays": (replaced(struct.pack("<IIQ", 9, 5, 2), struct.pack("<IIQ", 9, 9, 2)), "a.ints"),
    "unknown value type": (replaced(struct.pack("<If", 6, 0.5), struct.pack("<If", 77, 0.5)), "unknown value type 77"),
    "bad bool": (replaced(text("a.flag") + b"\7\0\0\0\1", text("a.flag") + b"\7\0\0\0\5"), "a.flag: 5 is not a bool"),
    "bad utf-8": (replaced(text("llama"), text("llama")[:-2] + b"\xff\xfe"), "general.architecture: is not UTF-8"),
    "key twice": (replaced(text("a.float"), text("a.words")), "occurs twice"),
    "unknown ggml type": (replaced(struct.pack("<QQI", 3, 2, 0), struct.pack("<QQI", 3, 2, 99)), "tensor t: unknown ggml"),
    "broken block": (replaced(struct.pack("<QQI", 64, 1, 3), struct.pack("<QQI", 33, 1, 3)), "tensor q: rows of (33,)"),
    "huge shape": (replaced(struct.pack("<QQI", 3, 2, 0), struct.pack("<QQI", 3, 2**63, 0)), "tensor t: its"),
    "offset beyond": (replaced(struct.pack("<IQ", 3, 32), struct.pack("<IQ", 3, 2**50)), "tensor q: its 40 bytes"),
    "offset askew": (replaced(struct.pack("<IQ", 3, 32), struct.pack("<IQ", 3, 33)), "tensor q: offset 33"),
    "no dimensions": (replaced(text("t") + struct.pack("<I", 2), text("t") + struct.pack("<I", 0)), "tensor t: 0 dim"),
    "tensor twice": (replaced(text("q"), text("t")), "tensor t: occurs twice"),
    "last byte lost": (SMALL[:-1], "tensor q: its 40 bytes"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
def test_damage_is_named(tmp_path: Path, name: str):
    raw, message = DAMAGED[name]
    with pytest.raises(CheckpointError) as error:
        opened(tmp_path, raw)
    assert str(tmp_path / "m.gguf") in error.value.message
    assert message in error.value.message


def test_bad_alignment(tmp_path: Path):
    with pytest.raises(CheckpointError, match=r"general\.alignment: must be positive"):
        opened(tmp_path, gguf({"general.alignment": 0}))


def test_bad_utf8_in_a_vocabulary_is_named_when_it_is_read(tmp_path: Path):
    file = opened(tmp_path, replaced("é".encode(), b"\xff\xff"))
    with pytest.raises(CheckpointError, match=r"a\.words\[1\]: is not UTF-8"):
        file.strings("a.words")


def read_everything(path: Path) -> None:
    """Nothing but a CheckpointError may come out of a damaged file."""
    with contextlib.suppress(CheckpointError):
        file = read_gguf(str(path))
        for key, value in file.metadata.items():
            if isinstance(value, GgufArray):
                (file.strings if value.type == 8 else file.numbers)(key)
        for name, tensor in file.tensors.items():
            assert len(file.data(name)) == tensor.nbytes


@settings(max_examples=300, deadline=None)
@given(cut=st.integers(0, len(SMALL)))
def test_any_truncation_is_an_error_or_readable(tmp_path_factory: pytest.TempPathFactory, cut: int):
    path = tmp_path_factory.getbasetemp() / "cut.gguf"
    path.write_bytes(SMALL[:cut])
    read_everything(path)


@settings(max_examples=500, deadline=None)
@given(
    changes=st.lists(
        st.tuples(st.integers(4, len(SMALL) - 9), st.one_of(st.binary(min_size=1, max_size=8), st.just(b"\xff" * 8))),
        min_size=1,
        max_size=4,
    )
)
def test_any_damage_is_an_error_or_readable(tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, bytes]]):
    raw = bytearray(SMALL)
    for place, value in changes:
        raw[place : place + len(value)] = value
    path = tmp_path_factory.getbasetemp() / "damaged.gguf"
    path.write_bytes(bytes(raw))
    read_everything(path)


def test_the_embedded_model_opens_fast(demo_gguf: Path):
    """Other processes share the machine: the best of several openings counts."""
    best = min(_seconds_to_open(demo_gguf) for _ in range(5))
    assert best < 0.05
    file = read_gguf(str(demo_gguf))
    assert len(file.tensors) == 272
    assert file.tensors["blk.0.attn_k.weight"].shape == (192, 576)
    assert len(file.strings("tokenizer.ggml.merges")) == 48900


def _seconds_to_open(path: Path) -> float:
    start = time.perf_counter()
    read_gguf(str(path))
    return time.perf_counter() - start


def test_long_vocabularies_are_read_fast(tmp_path: Path):
    words = [f"word{i}" for i in range(262_144)]
    path = write(tmp_path / "long.gguf", llama_metadata() | {"tokenizer.ggml.tokens": words}, [embedding()])
    start = time.perf_counter()
    found = read_gguf(path).strings("tokenizer.ggml.tokens")
    assert time.perf_counter() - start < 2
    assert found[-1] == "word262143"


@pytest.mark.parametrize(
    ("name", "block", "nbytes"),
    [("F32", 1, 4), ("BF16", 1, 2), ("Q4_0", 32, 18), ("Q5_1", 32, 24), ("Q8_0", 32, 34), ("Q2_K", 256, 84),
     ("Q3_K", 256, 110), ("Q4_K", 256, 144), ("Q5_K", 256, 176), ("Q6_K", 256, 210), ("IQ4_XS", 256, 136)],
)  # fmt: skip
def test_block_sizes(name: str, block: int, nbytes: int):
    (found,) = [kind for kind in GGML_TYPES.values() if kind.name == name]
    assert (found.block, found.nbytes) == (block, nbytes)


def test_block_sizes_are_those_of_the_gguf_package():
    from gguf.constants import GGML_QUANT_SIZES

    theirs = {int(kind): (kind.name, *sizes) for kind, sizes in GGML_QUANT_SIZES.items()}
    ours = {number: (kind.name, kind.block, kind.nbytes) for number, kind in GGML_TYPES.items()}
    assert {number: row for number, row in ours.items() if number in theirs} == theirs


def split(folder: Path, *, numbers: Sequence[int] = (0, 1, 2), count: int = 3, total: int = 3) -> list[Path]:
    """One model in three files, a tensor in each."""
    paths = [folder / f"m-{index + 1:05}-of-00003.gguf" for index in range(3)]
    for index, path in enumerate(paths):
        metadata = {"split.no": numbers[index], "split.count": count if index else 3, "split.tensors.count": total}
        metadata |= llama_metadata() if index == 0 else {}
        write(path, metadata, [(f"t{index}.weight", 0, (1, 32), bytes([index]) * 128)])
    return paths


def test_a_model_in_several_files(tmp_path: Path):
    paths = split(tmp_path)
    file = read_gguf(str(paths[0]))
    assert file.files == tuple(map(str, paths))
    assert {name: bytes(file.data(name)) for name in file.tensors} == {
        f"t{index}.weight": bytes([index]) * 128 for index in range(3)
    }
    assert file.text("general.architecture") == "llama"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"numbers": (0, 2, 1)}, r"m-00002-of-00003\.gguf: split.no and split.count do not say that it is part 2 of 3"),
        ({"count": 4}, r"m-00002-of-00003\.gguf: split.no and split.count"),
        ({"total": 5}, r"m-00001-of-00003\.gguf: split.tensors.count is 5, but the parts hold 3"),
    ],
)
def test_parts_that_do_not_fit_are_named(tmp_path: Path, options: dict[str, Any], message: str):
    with pytest.raises(CheckpointError, match=message):
        read_gguf(str(split(tmp_path, **options)[0]))


def test_a_missing_or_later_part_is_named(tmp_path: Path):
    paths = split(tmp_path)
    with pytest.raises(CheckpointError, match=r"is a later part of a model in 3 files; name the first, .*m-00001-of"):
        read_gguf(str(paths[1]))
    paths[2].unlink()
    with pytest.raises(CheckpointError, match=r"part .*m-00003-of-00003\.gguf is missing \(1 of 3 are\)"):
        read_gguf(str(paths[0]))
    paths[0].rename(tmp_path / "other.gguf")
    with pytest.raises(CheckpointError, match=r"one of 3 parts, but not named so \(NAME-00001-of-00003\.gguf\)"):
        read_gguf(str(tmp_path / "other.gguf"))


def test_a_tensor_in_two_parts_is_named(tmp_path: Path):
    paths = split(tmp_path)
    write(paths[2], {"split.no": 2, "split.count": 3}, [("t0.weight", 0, (1, 32), bytes(128))])
    with pytest.raises(CheckpointError, match=r"00003-of-00003\.gguf: tensor t0.weight is also in .*00001-of"):
        read_gguf(str(paths[0]))
