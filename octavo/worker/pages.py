"""The page pool: one tensor, strided per-layer views of it, and copies between its pages."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from octavo.base.errors import UnsupportedError
from octavo.device.base import Device
from octavo.engine.kvcache.geometry import Geometry, GroupGeometry
from octavo.nn.context import LayerPages
from octavo.ops.page_write import PageCopy
from octavo.protocol.arrays import Int32Array
from octavo.protocol.step import DEVICE


class PagePool:
    """All pages of a worker, and one more (`scratch`) that takes what nobody shall read.

    memory: uint8 [num_pages + 1, page_bytes]; on a CPU a page takes memory once it is first written. layers: by model
    layer index, those that are here.
    """

    def __init__(self, geometry: Geometry, num_pages: int, device: Device, page_copy: PageCopy) -> None:
        self.geometry = geometry
        self._page_copy = page_copy
        self.scratch = num_pages
        self.memory = device.allocate((num_pages + 1) * geometry.page_bytes).view(num_pages + 1, geometry.page_bytes)
        self.memory[num_pages].zero_()
        self.layers: dict[int, LayerPages] = {
            layer: self._view(number, group, index)
            for number, group in enumerate(geometry.groups)
            for index, layer in enumerate(group.layers)
        }
        assert len(self.layers) == sum(len(group.layers) for group in geometry.groups), "a layer is in one group"
        self.layers |= {layer: self.layers[owner] for layer, owner in geometry.shared}

    def copy(self, copies: Int32Array) -> None:
        """Copy pages in order. copies: int32 [k, 4] of (from place, from page, to place, to page)."""
        if len(copies) == 0:
            return
        if (copies[:, 0] != DEVICE).any() or (copies[:, 2] != DEVICE).any():
            raise UnsupportedError("this worker keeps pages on its device only", field="copies")
        pages = copies[:, 1::2].astype(np.int64)
        assert pages.min() >= 0 and pages.max() < self.scratch, "a copy names a page outside the pool"
        for batch in _independent(pages):
            sources, targets = torch.from_numpy(batch.T.copy()).to(self.memory.device)
            self._page_copy(self.memory, sources, targets)

    def _view(self, number: int, group: GroupGeometry, index: int) -> LayerPages:
        column, place = divmod(index * group.parts, group.bundle)
        first, places = place * group.layer_bytes, 1 if group.is_state else group.block
        planes: dict[str, Tensor] = {}
        for plane in group.kept.planes:
            size = plane.itemsize
            assert first % size == 0 and self.geometry.page_bytes % size == 0, "planes are aligned to their elements"
            flat = self.memory.view(-1).view(getattr(torch, plane.dtype))
            assert flat.itemsize == size, f"{plane.dtype} does not take {size} bytes"
            planes[plane.name] = flat.as_strided(
                (self.scratch + 1, plane.heads // group.parts, places, plane.dim),
                (self.geometry.page_bytes // size, places * plane.dim, plane.dim, 1),
                first // size,
            )
            first += plane.bytes_per_token // group.parts * places
        return LayerPages(group=number, column=column, planes=planes, parts=group.parts)


def _independent(pages: np.ndarray) -> Iterator[np.ndarray]:
    """Cut ordered copies, int64 [k, 2] of (from, to), into runs whose members may be done at the same time."""
    first, sources, targets = 0, set[int](), set[int]()
    for index, (source, target) in enumerate(pages.tolist()):
        if source in targets or target in targets or target in sources:
            yield pages[first:index]
            first, sources, targets = index, set(), set()
        sources.add(source)
        targets.add(target)
    yield pages[first:]
