"""GGUF's ways to store numbers -> float32. Formats: github.com/ggml-org/ggml, ggml-common.h.

Shapes: N blocks; a block of a type holds a fixed number of values in a fixed number of bytes.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from octavo.base.errors import CheckpointError


def _q4_1(raw: Tensor) -> Tensor:
    """32 values: scale and minimum as float16, then 16 bytes, the low nibbles before the high ones."""
    scale, minimum, nibbles = raw[:, :2].view(torch.float16), raw[:, 2:4].view(torch.float16), raw[:, 4:]
    values = torch.empty((len(raw), 32), dtype=torch.float32)
    values[:, :16] = nibbles & 15
    values[:, 16:] = nibbles >> 4
    return values.mul_(scale.float()).add_(minimum.float())


def _q8_0(raw: Tensor) -> Tensor:
    """32 values: scale as float16, then signed bytes."""
    return raw[:, 2:].view(torch.int8).float().mul_(raw[:, :2].view(torch.float16).float())


# Type -> (bytes of a block, its decoder: uint8 [N, bytes] -> float32 [N, values]).
_DECODERS: dict[str, tuple[int, Callable[[Tensor], Tensor]]] = {
    "F32": (4, lambda raw: raw.view(torch.float32)),
    "F16": (2, lambda raw: raw.view(torch.float16).float()),
    "BF16": (2, lambda raw: raw.view(torch.bfloat16).float()),
    "Q4_1": (20, _q4_1),
    "Q8_0": (34, _q8_0),
}


def check_type(name: str, type_name: str) -> None:
    """Raise CheckpointError if tensor `name` is of a type that cannot be decoded."""
    if type_name not in _DECODERS:
        raise CheckpointError(f"tensor {name} is of type {type_name}; Octavo reads {', '.join(_DECODERS)}")


def dequantize(type_name: str, raw: Tensor) -> Tensor:
    """Return the values of whole blocks, float32 flat, of raw, uint8 flat; bit for bit what `gguf` makes of them."""
    num_bytes, decode = _DECODERS[type_name]
    return decode(raw.view(-1, num_bytes)).flatten()
