"""What is known of the kernels that are kept compiled in Octavo's cache folder: for `octavo doctor`."""

from __future__ import annotations

import contextlib
from pathlib import Path

from octavo.base.env import read_env

# In the cache folder: what the last start found there.
_NOTE = "kernels.txt"


def note_kernels(found: int, wanted: int) -> None:
    """Note how many kernels that a start wanted were found compiled; a cache folder that cannot be written stays as it is."""
    folder = read_env().cache
    with contextlib.suppress(OSError):
        Path(folder, _NOTE).write_text(f"{found} of {wanted}", encoding="utf-8")


def kernel_cache_state() -> str:
    """Return in words how many kernels are kept compiled, and how many the last start found."""
    folder = Path(read_env().cache)
    kept, note = len(list((folder / "triton").rglob("*.cubin"))), folder / _NOTE
    if not note.is_file():
        return f"{kept} compiled"
    return f"{kept} compiled; the last start found {note.read_text(encoding='utf-8')} that it wanted"
