"""Random weights: a model that computes something sane from its config alone."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from octavo.ops.packed_product.blocks import BLOCK, quantize
from octavo.worker.loader.weights import Incoming, Target


def dummy_weights(targets: Mapping[str, Target], seed: int) -> Iterator[Incoming]:
    """Yield a random tensor for every target, made where it belongs. Each depends on the seed, its name and the kind of device.

    Matrices keep the size of what they multiply, norm weights are near 1, biases near 0.
    """
    for name, target in targets.items():
        yield (_blocks if target.packed else _incoming)(name, target.shape, seed)


def _incoming(name: str, shape: tuple[int, ...], seed: int) -> Incoming:
    def read(cut: tuple[slice, ...], into: Tensor) -> None:
        generator = torch.Generator(into.device).manual_seed(zlib.crc32(f"{seed} {name}".encode()))
        if len(shape) > 1:
            bound = (3.0 / shape[-1]) ** 0.5  # a variance of 1 / inputs
            values = torch.empty(shape, device=into.device).uniform_(-bound, bound, generator=generator)
        else:
            middle = 0.0 if name.endswith("bias") else 1.0
            values = torch.empty(shape, device=into.device).uniform_(middle - 0.1, middle + 0.1, generator=generator)
        into.copy_(values[cut])

    return Incoming(name=name, file="dummy weights", shape=shape, read=read)


def _blocks(name: str, shape: tuple[int, ...], seed: int) -> Incoming:
    """Random codes, in blocks that begin as if their numbers filled the bounds of `_incoming`."""

    def read(cut: tuple[slice, ...], into: Tensor) -> None:
        generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))
        bound = (3.0 / (shape[1] * BLOCK)) ** 0.5
        begin = quantize(torch.tensor([[-bound, bound] * (BLOCK // 2)]), shape[2])[0]
        codes = torch.empty(shape, dtype=torch.uint8).random_(generator=generator)
        codes[..., : shape[2] % 16] = begin[: shape[2] % 16]
        into.copy_(codes[cut])

    return Incoming(name=name, file="dummy weights", shape=shape, read=read)
