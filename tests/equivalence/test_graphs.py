"""The answers are the same when steps are replayed as graphs: on a fake device whose graphs behave as a GPU's.

Its attention, of which a graph can be recorded, lets every token look at all that its row's table could hold.
"""

from __future__ import annotations

import pytest
import torch

from tests.equivalence.features import Case
from tests.equivalence.runner import Report, Runner
from tests.fake_device import FakeDevice, fake_device

CASES = (
    "slots=3 batch=4 budget=16 choices=3 sampling=mixed order=staggered aborts=some seed=5",
    "slots=3 batch=20 budget=33 pool=small sampling=seeded ending=string prefix=warm seed=6",
    "slots=3 batch=20 budget=64 depth=ahead logprobs=on ending=token seed=7",
)


def dense_attention(q, key_pages, value_pages, table, query_starts, lengths, scoring, span=None):
    """See `PagedAttention`; windows are all that scores can have, and a span lies in its rows' tables too."""
    tokens, num_rows, block = torch.arange(len(q)), len(lengths), key_pages.shape[2]
    rows = torch.searchsorted(query_starts[1:].contiguous(), tokens, right=True)
    owned = (rows < num_rows)[:, None, None]
    rows = rows.clamp(max=num_rows - 1)
    positions = lengths[rows] - (query_starts[rows + 1] - tokens)
    seen = torch.arange(table.shape[1] * block)
    visible = seen <= positions[:, None]
    if scoring.window is not None:
        visible &= seen > positions[:, None] - scoring.window
    pages = table[:, seen // block].long()[rows]
    keys, values = (
        torch.where(visible[..., None, None], pool[pages, :, seen % block], 0.0) for pool in (key_pages, value_pages)
    )
    scores = torch.einsum("tkgd,tskd->tkgs", q.unflatten(1, (key_pages.shape[1], -1)) * scoring.scale, keys)
    weights = scores.masked_fill(~visible[:, None, None], float("-inf")).softmax(-1)
    return torch.where(owned, torch.einsum("tkgs,tskd->tkgd", weights, values).flatten(1, 2), 0.0)


@pytest.mark.parametrize("name", ["llama", "qwen3-two-groups"])
def test_answers_of_replayed_steps(tiny_model, monkeypatch, name):
    devices = list[FakeDevice]()

    def detect(kind: str = "auto") -> FakeDevice:
        devices.append(fake_device(features=frozenset(("queue", "graphs"))))
        return devices[-1]

    for where in ("octavo.device.registry", "octavo.worker.runner"):
        monkeypatch.setattr(f"{where}.detect", detect)
    monkeypatch.setattr("octavo.ops.paged_attention.reference.paged_attention", dense_attention)
    monkeypatch.setattr("octavo.worker.loader.assemble.called", lambda model, functions: ())
    report = Report()
    Runner(tiny_model(name), report).run(map(Case.parse, CASES))
    assert report.differences == [], "\n" + "\n".join(report.differences)
    assert report.answers > 40
    assert sum(device.num_replays for device in devices) > 100
