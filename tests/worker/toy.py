"""A toy decoder that knows pages, the same one without pages, and a host that plans by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import torch

from octavo.base.facts import ModelFacts, RopeFacts
from octavo.checkpoint.record import Checkpoint
from octavo.engine.kvcache.geometry import Geometry, GroupGeometry
from octavo.ops.draw import CHOICE, SEED, TEMPERATURE, TOP_K
from octavo.ops.draw.reference import kept_weights
from octavo.ops.draw.uniform import uniform
from octavo.ops.registry import Kernels, bind
from octavo.protocol.arrays import int32, rows32
from octavo.protocol.kept import KeptLayer, KeptTokens, Plane
from octavo.protocol.sampling import GREEDY_BELOW, SamplingParams
from octavo.protocol.step import FROM_DEVICE, Admission, StepPlan
from octavo.worker.spec import WorkerSpec
from tests.fake_device import FakeDevice

VOCAB, HIDDEN, HEADS, DIM, WINDOW, BLOCK = 97, 16, 2, 8, 6, 4
_PLANES = tuple(Plane(name=name, heads=HEADS, dim=DIM, dtype="float64", itemsize=8) for name in ("key", "value"))
FULL, SLIDING = KeptTokens(planes=_PLANES), KeptTokens(planes=_PLANES, window=WINDOW)
KEPT = (FULL, SLIDING, FULL)
LAYERS = tuple(KeptLayer(layer=i, kept=kept, blocks=(BLOCK, 16)) for i, kept in enumerate(KEPT))
LAYER_BYTES = BLOCK * FULL.bytes_per_token


def geometry(bundle: int) -> Geometry:
    """Two groups; bundle 1: the full group has two pages a block; bundle 2: the sliding group's pages are half empty."""
    full = GroupGeometry(layers=(0, 2), kept=FULL, block=BLOCK, bundle=bundle, pages_per_block=2 // bundle)
    sliding = GroupGeometry(layers=(1,), kept=SLIDING, block=BLOCK, bundle=1, pages_per_block=1)
    return Geometry(page_bytes=bundle * LAYER_BYTES, groups=(full, sliding), hash_unit=BLOCK)


class ToyModel:
    """Three attention layers, float64, random weights. `poison`: a token id whose hidden state is NaN."""

    def __init__(self, poison: int | None = None) -> None:
        generator = torch.Generator().manual_seed(7)
        draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
        self.embedding = draw(VOCAB, HIDDEN)
        self.places = draw(256, HIDDEN)
        self.qkv = [draw(3, HIDDEN, HIDDEN) / 2 for _ in KEPT]
        self.head = draw(HIDDEN, VOCAB)
        self.poison = poison
        self.num_tokens: list[int] = []

    def forward(self, ids, context):
        self.num_tokens.append(len(ids))
        assert ids.dtype == torch.int64
        hidden = self._embed(ids, context.positions)
        for layer, kept in enumerate(KEPT):
            q, k, v = self._project(layer, hidden)
            pages = context.layers[layer]
            group = context.groups[pages.group]
            for name, new in (("key", k), ("value", v)):
                pages.planes[name][group.write_pages[:, pages.column], :, group.write_offsets] = new
            mixed = torch.empty_like(hidden)
            for row, length in enumerate(context.lengths.tolist()):
                first, last = context.query_starts[row : row + 2].tolist()
                seen = torch.arange(length)
                columns = seen // group.block * group.pages_per_block + pages.column
                k, v = (
                    pages.planes[n][group.table[row, columns].long(), :, seen % group.block] for n in ("key", "value")
                )
                mixed[first:last] = self._attend(q[first:last], k, v, context.positions[first:last], kept.window)
            hidden = torch.tanh(hidden + mixed)
        return hidden

    def compute_logits(self, hidden):
        return (hidden @ self.head).float()

    def greedy(self, tokens, count):
        """Continue without pages, one whole pass a token."""
        tokens = list(tokens)
        for _ in range(count):
            tokens.append(int(self.logits(tokens)[-1].argmax()))
        return tokens[-count:]

    def logits(self, tokens):
        """float32 logits of every position, computed without pages."""
        positions = torch.arange(len(tokens))
        hidden = self._embed(torch.tensor(tokens), positions)
        for layer, kept in enumerate(KEPT):
            q, k, v = self._project(layer, hidden)
            hidden = torch.tanh(hidden + self._attend(q, k, v, positions, kept.window))
        return self.compute_logits(hidden)

    def _embed(self, ids, positions):
        hidden = self.embedding[ids] + self.places[positions]
        return hidden if self.poison is None else hidden.masked_fill((ids == self.poison)[:, None], math.nan)

    def _project(self, layer, hidden):
        return (hidden @ self.qkv[layer]).view(3, -1, HEADS, DIM)

    def _attend(self, q, k, v, positions, window):
        seen = torch.arange(len(k))
        visible = seen <= positions[:, None]
        if window is not None:
            visible &= seen > positions[:, None] - window
        # What is not visible may lie in no page, and be anything.
        v = torch.where(visible.any(0)[:, None, None], v, 0.0)
        scores = torch.einsum("qhd,khd->hqk", q, k).masked_fill(~visible, -math.inf)
        return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).reshape(len(q), HIDDEN)


class FlatToy(ToyModel):
    """The same decoder, of which a graph can be recorded: every token looks at all that its row's table could hold."""

    def forward(self, ids, context):
        self.num_tokens.append(len(ids))
        hidden = self._embed(ids, context.positions)
        num_rows, tokens = len(context.lengths), torch.arange(len(ids))
        rows = torch.searchsorted(context.query_starts[1:], tokens, right=True)
        owned = (rows < num_rows)[:, None]
        rows = rows.clamp(max=num_rows - 1)
        for layer, kept in enumerate(KEPT):
            q, k, v = self._project(layer, hidden)
            pages = context.layers[layer]
            group = context.groups[pages.group]
            for name, new in (("key", k), ("value", v)):
                pages.planes[name][group.write_pages[:, pages.column], :, group.write_offsets] = new
            seen, table = torch.arange(group.table.shape[1] // group.pages_per_block * group.block), group.table
            if group.span is not None and kept.window is None:
                blocks = torch.arange(table.shape[1]) // group.pages_per_block
                shared = (blocks * group.block < group.span.length) & (group.span.skips > 0)[:, None]
                table = torch.where(shared, group.span.table[: table.shape[1]], table)
            places = table[:, seen // group.block * group.pages_per_block + pages.column].long()[rows]
            k, v = (pages.planes[name][places, :, seen % group.block] for name in ("key", "value"))
            visible = seen <= context.positions[:, None]
            if kept.window is not None:
                visible &= seen > context.positions[:, None] - kept.window
            scores = torch.einsum("thd,tshd->ths", q, k)
            weights = scores.masked_fill(~visible[:, None], -math.inf).softmax(-1)
            v = torch.where(visible[..., None, None], v, 0.0)
            mixed = torch.einsum("ths,tshd->thd", weights, v).flatten(1)
            hidden = torch.tanh(hidden + torch.where(owned, mixed, 0.0))
        return hidden


def flat_draw(logits, slots, positions, reals, wholes):
    """Draws as the reference does; a graph of it can be recorded."""
    peaks, ids = logits.max(1)
    reals, wholes = reals[slots], wholes[slots]
    reached = kept_weights(logits, reals, wholes, waiting=False).cumsum(1)
    target = uniform(wholes[:, SEED], wholes[:, CHOICE], positions)[:, None] * reached[:, -1:]
    found = torch.searchsorted(reached, target, right=True)[:, 0].clamp(max=logits.shape[1] - 1)
    is_drawn = (reals[:, TEMPERATURE] >= GREEDY_BELOW) & (wholes[:, TOP_K] != 1)
    return torch.where(is_drawn, found, ids), peaks.isfinite()


@dataclass
class Loaded:
    """What the loader returns, of the toy."""

    model: ToyModel = field(default_factory=ToyModel)
    layers: tuple[KeptLayer, ...] = LAYERS
    kernels: Kernels = field(default_factory=lambda: bind(FakeDevice().facts, "float64"))
    decisions: tuple[str, ...] = ("toy",)
    generates: bool = True
    unrecordable: tuple[str, ...] = ("toy attention",)


def toy_spec(**changes) -> WorkerSpec:
    """A spec for the toy."""
    facts = ModelFacts(
        architecture="Toy",
        dtype="float64",
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=1,
        num_layers=len(KEPT),
        num_heads=HEADS,
        num_kv_heads=HEADS,
        head_dim=DIM,
        max_position=256,
        norm_eps=1e-5,
        rope=RopeFacts(dim=DIM),
    )
    checkpoint = Checkpoint(name="toy", path="/toy", kind="config", files=(), facts=facts)
    known = {"checkpoint": checkpoint, "dtype": "float64", "max_model_len": 64, "max_num_seqs": 8}
    return WorkerSpec(**(known | {"device": "cpu"} | changes))


class Host:
    """Plans by hand: pages come from a shuffled list, and nothing is ever done that the test does not say."""

    def __init__(self, shape: Geometry, num_pages: int, seed: int = 0) -> None:
        self.geometry = shape
        self.free = np.random.default_rng(seed).permutation(num_pages).tolist()
        self.pages: dict[int, dict[tuple[int, int], int]] = {}
        self._id = 0
        self.clear()

    def clear(self) -> None:
        self._rows: list[tuple[int, int, int, bool]] = []
        self._table: list[tuple[int, ...]] = []
        self._more: dict = {"admissions": (), "releases": []}

    def admit(
        self, slot, tokens, *, generation=0, computed=0, num_prompt=None, choice=0, seed=0, stop_ids=(), **params
    ):
        params = {"temperature": 0.0} | params
        admission = Admission(
            slot=slot,
            generation=generation,
            key=slot,
            choice=choice,
            tokens=int32(list(tokens)),
            num_prompt=num_prompt or len(tokens),
            num_computed=computed,
            seed=seed,
            stop_ids=tuple(stop_ids),
            sampling=SamplingParams(**params),
        )
        self._more["admissions"] += (admission,)
        self.pages[slot] = {}

    def release(self, slot):
        self._more["releases"].append(slot)
        self.free.extend(page for page in self.pages.pop(slot).values() if page >= 0)

    def place(self, slot, group, column, page):
        """Put a given page into a table."""
        self.pages[slot][group, column] = page
        self._table.append((group, slot, column, page))

    def grow(self, slot, length):
        """Give the slot pages for `length` tokens."""
        for number, group in enumerate(self.geometry.groups):
            for column in range(group.blocks_of(length) * group.pages_per_block):
                if (number, column) not in self.pages[slot]:
                    self.place(slot, number, column, self.free.pop())

    def forget(self, slot, before):
        """Drop a slot's sliding pages of blocks that lie wholly before a position."""
        for column in range(before // BLOCK):
            if self.pages[slot][1, column] >= 0:
                self.free.append(self.pages[slot][1, column])
                self.pages[slot][1, column] = -1  # The table still names it, and somebody else may get it.

    def chunk(self, slot, start, count, sample):
        self.grow(slot, start + count)
        self._rows.append((slot, start, count, sample))

    def decode(self, slot, length):
        """Compute the newest token of a sequence that has `length` tokens."""
        self.grow(slot, length)
        self._rows.append((slot, FROM_DEVICE, 1, True))

    def plan(self, **more) -> StepPlan:
        columns = list(zip(*self._rows, strict=True)) or [(), (), (), ()]
        copies = {name: rows32(more.pop(name), 4) for name in ("copies_before", "copies_after") if name in more}
        plan = StepPlan(
            id=self._id,
            slots=int32(columns[0]),
            starts=int32(columns[1]),
            counts=int32(columns[2]),
            samples=np.array(columns[3], np.bool_),
            admissions=self._more["admissions"],
            releases=int32(self._more["releases"]),
            table=rows32(self._table, 4),
            **copies,
            **more,
        )
        self._id += 1
        self.clear()
        return plan
