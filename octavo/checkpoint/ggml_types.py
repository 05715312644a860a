"""The ggml tensor types (`ggml_types.json`): their numbers in a file, their names, and how many bytes a block of values takes."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec


class GgmlType(msgspec.Struct, frozen=True):
    """One type: `block` values are stored together in `nbytes` bytes."""

    name: str
    block: int
    nbytes: int


_ROWS: Final = Path(__file__).with_suffix(".json").read_bytes()
GGML_TYPES: Final = msgspec.json.decode(_ROWS, type=dict[int, GgmlType])
