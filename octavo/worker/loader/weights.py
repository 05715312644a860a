"""Tensors of a checkpoint on their way to their destinations: one at a time, each checked, none missing, none left over."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from tqdm import tqdm

from octavo.base.errors import CheckpointError
from octavo.checkpoint.shards import ShardKind, shard_of_tensors
from octavo.nn.assembly import Destination, Stored
from octavo.ops.packed_product.blocks import BLOCK, quantize

# The number of a layer, an expert or a head in a module's path.
NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")
# Endings of tensors that old checkpoints carry and nobody needs: they follow from the config.
_HARMLESS = (".rotary_emb.inv_freq", ".rotary_emb.cos_cached", ".rotary_emb.sin_cached")
_DTYPES = ("F64", "F32", "F16", "BF16")
_NAMED = 4
# Numbers rounded at a time.
_PIECE = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Incoming:
    """A tensor of a checkpoint, not read yet. file: where it lies. read: copy its slice `cut` into a tensor, converted."""

    name: str
    file: str
    shape: tuple[int, ...]
    read: Callable[[tuple[slice, ...], Tensor], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A tensor that the checkpoint should have, and the destinations that share it; `stored` says how they lie in it."""

    stored: Stored
    parts: tuple[Destination, ...]

    @property
    def packed(self) -> bool:
        """Whether it is kept as blocks of few bits, [rows, blocks of a row, bytes of a block]."""
        return self.parts[0].tensor.dtype == torch.uint8

    @property
    def _alone(self) -> bool:
        return len(self.parts) == 1 and not self.stored.transposed

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's shape in the checkpoint."""
        if self._alone:
            return self.parts[0].shape
        first, rest = sum(part.shape[0] for part in self.parts), self.parts[0].shape[1:]
        return (*rest, first) if self.stored.transposed else (first, *rest)

    def fill(self, read: Callable[[tuple[slice, ...], Tensor], None]) -> None:
        """Bring every destination its share of the tensor that `read` reads; nothing is read if there is none here."""
        if all(part.tensor.numel() == 0 for part in self.parts):
            return
        if self._alone:
            read(self.parts[0].cut, self.parts[0].tensor)
            return
        whole = self.parts[0].tensor.new_empty(self.shape)
        read((), whole)
        groups = (whole.mT if self.stored.transposed and whole.ndim > 1 else whole).unflatten(
            0, (self.stored.groups, -1)
        )
        shares = groups.split([part.shape[0] // self.stored.groups for part in self.parts], 1)
        for part, share in zip(self.parts, shares, strict=True):
            part.tensor.copy_(share.flatten(0, 1)[part.cut])


def fill(
    targets: Mapping[str, Target], incoming: Iterable[Incoming], unused: frozenset[str], elsewhere: tuple[str, ...] = ()
) -> None:
    """Read every tensor into its destination. targets: by name in the checkpoint. unused: names of modules whose tensors are not
    needed, `{}` for every number in them. elsewhere: how names begin of what other stages hold.

    Raises CheckpointError naming the tensor that is missing, unexpected, there twice or of another shape. A terminal sees
    a progress bar.
    """
    waiting, base = dict(targets), next(iter(targets)).partition(".")[0]
    for tensor in tqdm(incoming, desc="weights", total=len(targets), unit="tensor", leave=False, disable=None):
        # Files of a model without its head leave out what the other names begin with.
        names = tensor.name, f"{base}.{tensor.name}"
        name = next((name for name in names if name in targets), None)
        if name is None:
            known = tensor.name.endswith(_HARMLESS) or any(name.startswith(elsewhere) for name in names)
            if known or not unused.isdisjoint(NUMBER.sub("{}", name.rpartition(".")[0]) for name in names):
                continue
            raise CheckpointError(f"{tensor.file}: tensor {tensor.name} is not one of this architecture's")
        target = waiting.pop(name, None)
        if target is None:
            raise CheckpointError(f"{tensor.file}: tensor {tensor.name} is there twice")
        if target.packed and len(tensor.shape) + 1 == len(target.shape):
            tensor = in_blocks(tensor, target.shape[-1])
        if tensor.shape != target.shape:
            raise CheckpointError(
                f"{tensor.file}: tensor {tensor.name} is {list(tensor.shape)}, but the config asks for {list(target.shape)}"
            )
        target.fill(tensor.read)
    if waiting:
        more = f" and {len(waiting) - _NAMED} more" if len(waiting) > _NAMED else ""
        raise CheckpointError(f"tensors are missing: {', '.join(list(waiting)[:_NAMED])}{more}")


def in_blocks(incoming: Incoming, num_bytes: int) -> Incoming:
    """Return a matrix of numbers as one of blocks of so many bytes, made some rows at a time."""
    num_rows, num_ins = incoming.shape
    step = max(_PIECE // num_ins, 1)

    def read(cut: tuple[slice, ...], into: Tensor) -> None:
        begin = (cut[0].start or 0) if cut else 0
        for first in range(0, into.shape[0], step):
            target = into[first : first + step]
            numbers = torch.empty((len(target), num_ins))
            incoming.read((slice(begin + first, begin + first + len(target)), slice(None)), numbers)
            target.copy_(quantize(numbers.view(-1, BLOCK), num_bytes).view(target.shape))

    return replace(incoming, shape=(num_rows, num_ins // BLOCK, num_bytes), read=read)


def safetensors_weights(files: Sequence[str]) -> Iterator[Incoming]:
    """Yield the tensors of safetensors files, one open file at a time; bytes are mapped, and copied once."""
    for path, is_wanted in indexed(files, "safetensors"):
        try:
            with safe_open(path, framework="pt") as file:
                yield from (_incoming(path, file, name) for name in file.keys() if is_wanted(name))  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path}: cannot be read: {error}") from error


def indexed(files: Sequence[str], kind: ShardKind) -> Iterator[tuple[str, Callable[[str], bool]]]:
    """Yield every file, and whether a tensor in it is wanted: the index may say that another file's is the right one."""
    owners = shard_of_tensors(Path(files[0]).parent, kind) or {}
    for path in files:
        name = Path(path).name
        yield path, lambda tensor, name=name: owners.get(tensor, name) == name


def _incoming(path: str, file: safe_open, name: str) -> Incoming:
    part = file.get_slice(name)

    def read(cut: tuple[slice, ...], into: Tensor) -> None:
        if part.get_dtype() not in _DTYPES:
            raise CheckpointError(
                f"{path}: tensor {name} is of type {part.get_dtype()}; Octavo reads {', '.join(_DTYPES)} here"
            )
        shape = tuple(part.get_shape())
        held = part[cut] if cut and shape != tuple(into.shape) else file.get_tensor(name)
        into.copy_(held)

    return Incoming(name=name, file=path, shape=tuple(part.get_shape()), read=read)
