"""Numbers of few bits, as GGUF stores them, and back. Formats: github.com/ggml-org/ggml, ggml-common.h.

Shapes: N blocks; a block of a type holds a fixed number of values in a fixed number of bytes (`checkpoint/ggml_types.py`).
The types with a K hold 256 values in 8 or 16 groups, each with a small whole scale, and one float16 over all of them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from octavo.base.errors import CheckpointError
from octavo.checkpoint.ggml_types import GGML_TYPES

_BLOCK_BYTES = {kind.name: kind.nbytes for kind in GGML_TYPES.values()}
# Those that products take as they are.
PACKED = frozenset(("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"))
# Numbers in a block of those that are made here.
BLOCK = 32
# The sixteen values of a nibble: IQ4's, and twice those of the OCP microscaling float e2m1.
_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


def _half(raw: Tensor, start: int) -> Tensor:
    """Read a float16 of every block: float32 [N, 1]."""
    return raw[:, start : start + 2].view(torch.float16).float()


def _unpack(raw: Tensor, bits: int, run: int) -> Tensor:
    """Cut bytes into values of `bits` bits. Every `run` of bytes gives the lowest bits of each, then the next ones."""
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8).view(-1, 1)
    return ((raw.unflatten(1, (-1, 1, run)) >> shifts) & (2**bits - 1)).flatten(1)


def _grouped(values: Tensor, scales: Tensor) -> Tensor:
    """Multiply each of the equal groups of a block's values by its scale; in place."""
    values.view(len(values), scales.shape[1], -1).mul_(scales.unsqueeze(2))
    return values


def _looked_up(codes: Tensor, values: tuple[int, ...]) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)[codes.int()]


def _q4_0(raw: Tensor) -> Tensor:
    return _unpack(raw[:, 2:], 4, 16).float().sub_(8).mul_(_half(raw, 0))


def _q4_1(raw: Tensor) -> Tensor:
    return _unpack(raw[:, 4:], 4, 16).float().mul_(_half(raw, 0)).add_(_half(raw, 2))


def _q5_0(raw: Tensor) -> Tensor:
    high = _unpack(raw[:, 2:6], 1, 1) << 4
    return (_unpack(raw[:, 6:], 4, 16) | high).float().sub_(16).mul_(_half(raw, 0))


def _q5_1(raw: Tensor) -> Tensor:
    high = _unpack(raw[:, 4:8], 1, 1) << 4
    return (_unpack(raw[:, 8:], 4, 16) | high).float().mul_(_half(raw, 0)).add_(_half(raw, 2))


def _q8_0(raw: Tensor) -> Tensor:
    return raw[:, 2:].view(torch.int8).float().mul_(_half(raw, 0))


def _q2_k(raw: Tensor) -> Tensor:
    scales, minima = raw[:, :16] & 15, raw[:, :16] >> 4
    values = _grouped(_unpack(raw[:, 16:80], 2, 32).float(), scales * _half(raw, 80))
    return values.sub_((minima * _half(raw, 82)).repeat_interleave(16, 1))


def _q3_k(raw: Tensor) -> Tensor:
    scales = _unpack(raw[:, 96:104], 4, 8) | _unpack(raw[:, 104:108], 2, 4) << 4
    values = _unpack(raw[:, 32:96], 2, 32) | _unpack(raw[:, :32], 1, 32) << 2
    return _grouped(values.float().sub_(4), scales.float().sub_(32).mul_(_half(raw, 108)))


def _six_bits(raw: Tensor) -> tuple[Tensor, Tensor]:
    """Read the 8 scales and 8 minima that Q4_K and Q5_K pack into 12 bytes after their two float16."""
    first, second, third = raw[:, 4:8], raw[:, 8:12], raw[:, 12:16]
    scales = torch.cat([first & 63, (third & 15) | (first >> 6) << 4], 1)
    minima = torch.cat([second & 63, (third >> 4) | (second >> 6) << 4], 1)
    return scales * _half(raw, 0), minima * _half(raw, 2)


def _q4_k(raw: Tensor) -> Tensor:
    scales, minima = _six_bits(raw)
    return _grouped(_unpack(raw[:, 16:], 4, 32).float(), scales).sub_(minima.repeat_interleave(32, 1))


def _q5_k(raw: Tensor) -> Tensor:
    scales, minima = _six_bits(raw)
    values = _unpack(raw[:, 48:], 4, 32) | _unpack(raw[:, 16:48], 1, 32) << 4
    return _grouped(values.float(), scales).sub_(minima.repeat_interleave(32, 1))


def _q6_k(raw: Tensor) -> Tensor:
    values = _unpack(raw[:, :128], 4, 64) | _unpack(raw[:, 128:192], 2, 32) << 4
    return _grouped(values.float().sub_(32), raw[:, 192:208].view(torch.int8) * _half(raw, 208))


def _iq4_nl(raw: Tensor) -> Tensor:
    return _looked_up(_unpack(raw[:, 2:], 4, 16), _IQ4).mul_(_half(raw, 0))


def _iq4_xs(raw: Tensor) -> Tensor:
    scales = _unpack(raw[:, 4:8], 4, 1) | _unpack(raw[:, 2:4], 2, 1) << 4
    return _grouped(_looked_up(_unpack(raw[:, 8:], 4, 16), _IQ4), scales.float().sub_(32).mul_(_half(raw, 0)))


def _mxfp4(raw: Tensor) -> Tensor:
    """The scale is a power of two, 2 ** (byte - 128): halved, as the table's values are doubled."""
    exponent = raw[:, :1].int()
    bits = torch.where(exponent < 2, 0x00200000 << exponent, (exponent - 1) << 23)  # the smallest two are subnormal
    return _looked_up(_unpack(raw[:, 1:], 4, 16), _E2M1).mul_(bits.view(torch.float32))


# Decoders: uint8 [N, bytes] -> float32 [N, values].
_DECODERS: dict[str, Callable[[Tensor], Tensor]] = {
    "F32": lambda raw: raw.view(torch.float32),
    "F16": lambda raw: raw.view(torch.float16).float(),
    "BF16": lambda raw: raw.view(torch.bfloat16).float(),
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    "MXFP4": _mxfp4,
}


def blocks_of_row(type_name: str, num_bytes: int) -> tuple[int, int]:
    """Return (blocks of a row of so many bytes, bytes of a block)."""
    return num_bytes // _BLOCK_BYTES[type_name], _BLOCK_BYTES[type_name]


def check_type(name: str, type_name: str) -> None:
    """Raise CheckpointError if tensor `name` is of a type that cannot be decoded."""
    if type_name not in _DECODERS:
        raise CheckpointError(f"tensor {name} is of type {type_name}; Octavo reads {', '.join(_DECODERS)}")


def dequantize(type_name: str, raw: Tensor) -> Tensor:
    """Return the values of whole blocks, float32 flat, of raw, uint8 flat; bit for bit what `gguf` makes of them."""
    return _DECODERS[type_name](raw.view(-1, _BLOCK_BYTES[type_name])).flatten()


def quantize(numbers: Tensor, num_bytes: int) -> Tensor:
    """Return float32 [N, 32] as blocks, uint8 [N, num_bytes]: of Q8_0 (34 bytes) or Q4_1 (20)."""
    if num_bytes == _BLOCK_BYTES["Q8_0"]:
        scale, low, most = numbers.abs().amax(1, keepdim=True) / 127, torch.zeros(()), 127
    else:
        low, high = numbers.aminmax(dim=1, keepdim=True)
        low, most = low.half(), 15
        scale = (high - low) / 15
    scale = scale.half()
    # Where all numbers are the same there is no step.
    codes = ((numbers - low) / scale).nan_to_num_(0.0, 0.0, 0.0).round_()
    if most == 127:
        return torch.cat([scale.view(torch.uint8), codes.clamp_(-127, 127).to(torch.int8).view(torch.uint8)], 1)
    codes = codes.clamp_(0, 15).to(torch.uint8)
    return torch.cat([scale.view(torch.uint8), low.view(torch.uint8), codes[:, :16] | codes[:, 16:] << 4], 1)
