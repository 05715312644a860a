"""msgpack encoding of records, arrays included. Never pickle; every decoder is typed and checks what it reads."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec
import numpy as np

from octavo.base.errors import OctavoError

_T = TypeVar("_T")
_DTYPES = {"i4": np.int32, "i8": np.int64, "f4": np.float32, "b1": np.bool_, "u1": np.uint8}
_CODES = {np.dtype(dtype): code for code, dtype in _DTYPES.items()}


class DecodeError(OctavoError):
    """Bytes that are not a record of the expected type."""

    status = 400
    kind = "invalid_request_error"


def _encode_array(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return (_CODES[value.dtype], value.shape, value.tobytes())
    raise NotImplementedError(f"cannot encode {type(value)}")


def _decode_array(expected: Any, value: Any) -> Any:
    code, shape, data = value
    dtype = _DTYPES[code]
    if any(not isinstance(size, int) or size < 0 for size in shape):
        raise ValueError("array shape must be whole numbers >= 0")
    wanted = expected.__args__[1].__args__[0]
    if dtype is not wanted:
        raise ValueError(f"expected an array of {wanted.__name__}, got {dtype.__name__}")
    return np.frombuffer(data, dtype=dtype).reshape(shape)


class Codec(Generic[_T]):
    """Encodes and decodes one type of record."""

    def __init__(self, record: Any) -> None:
        self._encoder = msgspec.msgpack.Encoder(enc_hook=_encode_array)
        self._decoder: Any = msgspec.msgpack.Decoder(record, dec_hook=_decode_array)

    def encode(self, record: _T) -> bytes:
        """Return the record as msgpack bytes."""
        return self._encoder.encode(record)

    def decode(self, data: bytes) -> _T:
        """Return the record in `data`; raises DecodeError for anything else."""
        try:
            return self._decoder.decode(data)
        except (msgspec.MsgspecError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise DecodeError(f"not a valid message: {error}") from error
