"""A folder of compiled kernels can be copied: what is found in the copy lies in the copy, and the first one may be gone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from octavo.ops.kernel_files import KernelFiles


def test_kernels_are_found_in_a_copy_of_their_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, copy = tmp_path / "first", tmp_path / "copy"
    monkeypatch.setenv("TRITON_CACHE_DIR", str(first))
    files = KernelFiles("key")
    group = {name: files.put(name.encode(), name) for name in ("kernel.cubin", "kernel.json")}
    files.put_group("kernel.json", group)
    assert files.get_group("kernel.json") == group
    shutil.move(first, copy)
    assert files.get_group("kernel.json") is None
    monkeypatch.setenv("TRITON_CACHE_DIR", str(copy))
    moved = KernelFiles("key").get_group("kernel.json")
    assert moved == {name: str(copy / "key" / name) for name in group}
    assert all(Path(path).read_bytes() == name.encode() for name, path in moved.items())
    (copy / "key" / "kernel.cubin").unlink()
    assert KernelFiles("key").get_group("kernel.json") is None
    assert KernelFiles("key").get_group("another.json") is None


@pytest.mark.parametrize("text", ["", '{"child_paths": {"kernel', "[]", "{}", '{"child_paths": 3}'])
def test_a_damaged_list_of_files_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    files = KernelFiles("key")
    files.put_group("kernel.json", {"kernel.json": files.put(b"{}", "kernel.json")})
    (tmp_path / "key" / "__grp__kernel.json").write_text(text)
    assert files.get_group("kernel.json") is None
