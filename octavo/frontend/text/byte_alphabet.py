"""The alphabet of byte-level BPE: each byte is written as one printable character (from GPT-2)."""

from __future__ import annotations


def byte_characters() -> dict[str, int]:
    """Return character -> byte: printable bytes stand for themselves, the others are numbered from U+0100 up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(others)}
