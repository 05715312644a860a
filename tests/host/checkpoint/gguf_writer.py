"""Writes small GGUF files for tests."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Tensor = tuple[str, int, tuple[int, ...], bytes]


def text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def entry(key: str, value: Any) -> bytes:
    head = text(key)
    if isinstance(value, bool):
        return head + struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return head + struct.pack("<Iq", 11, value)
    if isinstance(value, float):
        return head + struct.pack("<If", 6, value)
    if isinstance(value, str):
        return head + struct.pack("<I", 8) + text(value)
    if value and isinstance(value[0], str):
        return head + struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(text, value))
    code, kind = ("f", 6) if value and isinstance(value[0], float) else ("i", 5)
    return head + struct.pack("<IIQ", 9, kind, len(value)) + struct.pack(f"<{len(value)}{code}", *value)


def gguf(
    metadata: Mapping[str, Any], tensors: Sequence[Tensor] = (), *, version: int = 3, alignment: int = 32
) -> bytes:
    """tensors: (name, ggml type number, shape outermost first, data)."""
    header = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    header += b"".join(entry(key, value) for key, value in metadata.items())
    data = b""
    for name, kind, shape, raw in tensors:
        data += b"\0" * (-len(data) % alignment)
        header += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape[::-1], kind, len(data))
        data += raw
    return header + b"\0" * (-len(header) % alignment) + data


def write(path: Path, metadata: Mapping[str, Any], tensors: Sequence[Tensor] = ()) -> str:
    path.write_bytes(gguf(metadata, tensors))
    return str(path)


def llama_metadata(**changes: Any) -> dict[str, Any]:
    """A tiny llama's metadata; `None` leaves a key out, `__` in a name stands for a dot."""
    metadata: dict[str, Any] = {
        "general.architecture": "llama",
        "llama.block_count": 2,
        "llama.context_length": 128,
        "llama.embedding_length": 32,
        "llama.feed_forward_length": 48,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 50000.0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    metadata.update({key.replace("__", "."): value for key, value in changes.items()})
    return {key: value for key, value in metadata.items() if value is not None}


def embedding(kind: int = 0, itemsize: int = 4) -> Tensor:
    return ("token_embd.weight", kind, (7, 32), b"\1" * (7 * 32 * itemsize))
