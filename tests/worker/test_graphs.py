"""Steps replayed as graphs, on a fake device whose graphs behave as a GPU's: same answers, whatever is replayed when."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from octavo.base.errors import ConfigError
from octavo.device.cpu import CpuDevice
from octavo.ops.registry import bind
from octavo.protocol.arrays import int32
from octavo.worker.graphs import row_sizes
from octavo.worker.runner import ModelRunner
from tests.fake_device import fake_device
from tests.worker.toy import FlatToy, Host, Loaded, ToyModel, flat_draw, geometry, toy_spec

NUM_PAGES = 160
PROMPTS = [[(7 * i + 3 * j * j) % 90 for j in range(n)] for i, n in enumerate((1, 5, 13, 22, 3, 8))]
FEATURES = frozenset(("queue", "graphs"))


def make(monkeypatch, model=None, features=FEATURES, draw=None, **changes):
    """A runner on a device with graphs, and a host for it."""
    device = fake_device(features=features)
    monkeypatch.setattr("octavo.worker.runner.detect", lambda kind: device)
    loaded = Loaded(model=model or FlatToy(), unrecordable=())
    if draw is not None:
        loaded.kernels = replace(bind(device.facts, "float64"), draw=draw)
    runner = ModelRunner(toy_spec(**changes), lambda checkpoint, **_: loaded)
    report = runner.load()
    runner.allocate(geometry(1), NUM_PAGES)
    return runner, Host(geometry(1), NUM_PAGES), device, report


def start(runner, host, slot, prompt, **params):
    """Admit and prefill whole; returns the first id."""
    return int(runner.execute(chunk_of(host, slot, prompt, **params)).ids[0])


def chunk_of(host, slot, prompt, **params):
    """A plan that admits and prefills a sequence."""
    host.admit(slot, prompt, **params)
    host.chunk(slot, 0, len(prompt), True)
    return host.plan()


def follow(runner, host, lengths):
    """One decode step; lengths: slot -> tokens known."""
    for slot, length in lengths.items():
        host.decode(slot, length)
    return runner.launch(host.plan())


def test_the_toy_of_graphs_is_the_toy():
    assert [FlatToy().greedy(prompt, 3) for prompt in PROMPTS] == [ToyModel().greedy(prompt, 3) for prompt in PROMPTS]


def test_sizes_are_few_and_reach_the_most():
    assert row_sizes(1) == (1,)
    assert row_sizes(8) == (1, 2, 4, 8)
    assert row_sizes(100) == (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 100)
    assert row_sizes(1024)[-6:] == (192, 256, 384, 512, 768, 1024)


@pytest.mark.parametrize("rows", [1, 3, 5, 6])
def test_every_decode_step_is_one_replay(monkeypatch, rows):
    runner, host, device, report = make(monkeypatch)
    assert "decode steps are replayed as graphs" in report.decisions
    assert len(device.graphs) == 4  # 1, 2, 4 and 8 rows.
    got = [[start(runner, host, slot, prompt)] for slot, prompt in enumerate(PROMPTS[:rows])]
    before, num_passes = device.num_replays, len(runner.model.num_tokens)
    for step in range(12):
        result = follow(runner, host, {slot: len(PROMPTS[slot]) + step + 1 for slot in range(rows)}).result()
        assert result.offsets.tolist() == list(range(rows + 1))
        for row, out in enumerate(got):
            out.append(int(result.ids[row]))
    assert got == [FlatToy().greedy(prompt, 13) for prompt in PROMPTS[:rows]]
    assert device.num_replays - before == 12
    assert len(runner.model.num_tokens) == num_passes


def test_a_host_records_a_decode_step_when_it_comes_again_and_results_are_read_late(monkeypatch):
    monkeypatch.setattr("octavo.worker.runner.detect", lambda kind: CpuDevice())
    runner = ModelRunner(toy_spec(), lambda checkpoint, **_: Loaded(model=FlatToy(), unrecordable=()))
    assert "decode steps are replayed as graphs" in runner.load().decisions
    runner.allocate(geometry(1), NUM_PAGES)
    host = Host(geometry(1), NUM_PAGES)
    got = [[start(runner, host, slot, prompt)] for slot, prompt in enumerate(PROMPTS[:3])]
    pending, passes = [], list[int]()
    for step in range(8):
        before = len(runner.model.num_tokens)
        pending.append(follow(runner, host, {slot: len(PROMPTS[slot]) + step + 1 for slot in range(3)}))
        passes.append(len(runner.model.num_tokens) - before)
    for one in pending:
        for out, token in zip(got, one.result().ids.tolist(), strict=True):
            out.append(token)
    assert got == [FlatToy().greedy(prompt, 9) for prompt in PROMPTS[:3]]
    # Once as it is, then twice to record it, then never again.
    assert passes == [1, 2, 0, 0, 0, 0, 0, 0]


def test_results_are_read_late(monkeypatch):
    runner, host, device, _ = make(monkeypatch)
    prompt = PROMPTS[2]
    first = start(runner, host, 0, prompt)
    pending = [follow(runner, host, {0: len(prompt) + step}) for step in range(1, 6)]
    done = device.num_done
    assert [one.ready_within(0.0) for one in pending] == [False] * 5
    assert device.num_done == done, "a launch waits for nothing"
    got = [int(one.result().ids[0]) for one in pending]
    assert [first, *got] == FlatToy().greedy(prompt, 6)


def test_rows_come_and_go_between_replays(monkeypatch):
    runner, host, _, _ = make(monkeypatch)
    got = {slot: [start(runner, host, slot, PROMPTS[slot])] for slot in (0, 1, 2)}
    kept = dict(got)
    for step in range(15):
        if step == 4:
            host.release(1)
            del got[1]
        if step == 6:
            got[5] = kept[5] = [start(runner, host, 5, PROMPTS[5])]
        if step == 9:
            host.release(0)
            del got[0]
        lengths = {slot: len(PROMPTS[slot]) + len(out) for slot, out in got.items()}
        for slot, token in zip(lengths, follow(runner, host, lengths).result().ids.tolist(), strict=True):
            got[slot].append(token)
    assert {slot: out == FlatToy().greedy(PROMPTS[slot], len(out)) for slot, out in kept.items()} == {
        0: True,
        1: True,
        2: True,
        5: True,
    }
    assert runner.slots.lengths[runner.slots.void] == 0


def test_mixed_steps_are_recorded_once_they_come_often(monkeypatch):
    runner, host, device, _ = make(monkeypatch)
    out = [start(runner, host, 0, PROMPTS[1])]
    num_graphs, passes = len(device.graphs), list[int]()
    for turn in range(12):
        # A prompt in chunks of three beside a decode; its slot is another's each time.
        slot, prompt = 1 + turn % 7, PROMPTS[2 + turn % 2][:9]
        host.admit(slot, prompt, generation=turn)
        for first in range(0, 9, 3):
            host.decode(0, 5 + len(out))
            host.chunk(slot, first, 3, first == 6)
            before = device.num_replays
            result = runner.execute(host.plan())
            passes.append(device.num_replays - before)
            out.append(int(result.ids[0]))
        assert result.ids.tolist()[1:] == FlatToy().greedy(prompt, 1)
        host.release(slot)
    assert out == FlatToy().greedy(PROMPTS[1], len(out))
    assert passes == [0] * 6 + [1] * 30
    assert len(device.graphs) == num_graphs + 1


def test_long_steps_are_recorded_where_they_take_the_whole_budget(monkeypatch):
    monkeypatch.setattr("octavo.worker.graphs.MOST_TOKENS", 12)
    monkeypatch.setattr("octavo.worker.graphs._OFTEN", 1)
    runner, host, device, _ = make(monkeypatch, max_num_batched_tokens=22)
    num_graphs, found = len(device.graphs), list[tuple[int, int]]()
    for turn, prompt in enumerate([PROMPTS[3], PROMPTS[2], PROMPTS[3][:21], PROMPTS[3]]):
        before = device.num_replays
        assert start(runner, host, turn, prompt) == FlatToy().greedy(prompt, 1)[0]
        found.append((len(device.graphs) - num_graphs, device.num_replays - before))
    # 13 tokens of 22, and 21, would leave too much of a graph empty.
    assert found == [(1, 1), (1, 0), (1, 0), (1, 1)]


def test_an_idle_worker_records_what_it_missed(monkeypatch):
    runner, host, device, _ = make(monkeypatch, max_num_seqs=20)
    assert len(device.graphs) == 6  # 1, 2, 4, 8, 16 and 20.
    start(runner, host, 0, PROMPTS[0])
    runner.idle()
    num_graphs = len(device.graphs)
    assert num_graphs == 7, "a prefill"
    runner.idle()
    assert len(device.graphs) == num_graphs
    assert start(runner, host, 1, PROMPTS[1]) == FlatToy().greedy(PROMPTS[1], 1)[0]


def test_nothing_is_recorded_into_the_last_memory(monkeypatch, caplog):
    runner, host, device, _ = make(monkeypatch, max_num_seqs=20)
    start(runner, host, 0, PROMPTS[0])
    # What a graph may take is known from the tries at start: six sizes of 8 MiB here.
    device.allocated = device.facts.total_memory - 6 * 8 * 2**20 + 1
    num_graphs = len(device.graphs)
    with caplog.at_level("INFO"):
        runner.idle()
    assert len(device.graphs) == num_graphs
    assert "no more steps are recorded: less than 48 MiB" in caplog.text
    got = [int(runner.execute(chunk_of(host, slot, PROMPTS[1])).ids[0]) for slot in range(1, 15)]
    assert got == 14 * FlatToy().greedy(PROMPTS[1], 1)
    assert len(device.graphs) == num_graphs


def test_who_asks_for_more_is_sampled_behind_the_graph(monkeypatch):
    def run(features):
        runner, host, device, _ = make(monkeypatch, features=features)
        start(runner, host, 0, PROMPTS[1], temperature=0.9, top_p=0.9, seed=7)
        start(runner, host, 1, PROMPTS[2])
        start(runner, host, 2, PROMPTS[3], temperature=1.2, seed=3, logprobs=2)
        found, before = [], device.num_replays
        for step in range(1, 14):
            lengths = {slot: len(PROMPTS[slot + 1]) + step for slot in range(3)}
            result = follow(runner, host, lengths).result()
            found.append(
                (result.ids.tolist(), result.logprobs.top_ids.tolist(), result.logprobs.chosen.round(4).tolist())
            )
        return found, device.num_replays - before

    plain, none = run(frozenset())
    replayed, some = run(FEATURES)
    assert replayed == plain
    assert (none, some) == (0, 6), "recorded at the eighth step"


KINDS = [
    {"temperature": 0.9, "top_p": 0.9, "seed": 7},
    {},
    {"temperature": 1.2, "seed": 3},
    {"temperature": 0.7, "top_k": 5, "min_p": 0.01, "seed": 3, "choice": 1},
    {"temperature": 2.0, "top_k": 1},
]


@pytest.mark.parametrize("draw", [None, flat_draw])
def test_rows_are_drawn_inside_the_graph(monkeypatch, draw):
    """Or behind it, where drawing cannot be recorded."""

    def run(features):
        runner, host, device, _ = make(monkeypatch, features=features, draw=draw)
        lengths, found = dict[int, int](), list[list[int]]()
        for slot, params in enumerate(KINDS):
            start(runner, host, slot, PROMPTS[slot], **params)
            lengths[slot] = len(PROMPTS[slot]) + 1
        num_graphs, before = len(device.graphs), device.num_replays
        for _ in range(14):
            found.append(follow(runner, host, lengths).result().ids.tolist())
            lengths = {slot: length + 1 for slot, length in lengths.items()}
        return found, device.num_replays - before, [graph.num_operations for graph in device.graphs[num_graphs:]]

    (plain, none, _), (replayed, some, made) = run(frozenset()), run(FEATURES)
    assert replayed == plain
    # A few sizes are drawn in from the start; otherwise a step is recorded when it comes for the eighth time.
    assert (none, some) == (0, 14 if draw else 7)
    assert len(made) == (not draw)
    greedy = [FlatToy().greedy(PROMPTS[slot], 15)[1:] for slot in (1, 4)]
    assert [[ids[slot] for ids in plain] for slot in (1, 4)] == greedy
    assert [ids[0] for ids in plain] != FlatToy().greedy(PROMPTS[0], 15)[1:]


def test_few_drawn_sizes_are_recorded_at_start(monkeypatch):
    _, _, device, _ = make(monkeypatch, draw=flat_draw, max_num_seqs=20)
    assert device.graphs[1].num_operations > device.graphs[0].num_operations + 20
    many = [graph.num_operations > device.graphs[0].num_operations + 20 for graph in device.graphs]
    # Of 20, 16, 8, 4, 2 and 1 rows, the drawn ones behind the greedy ones of their sizes.
    assert many == [False, True, False, False, True, False, False, False, True]


@pytest.mark.parametrize("draw", [None, flat_draw])
def test_a_drawn_row_that_joins_a_recorded_step_is_drawn(monkeypatch, draw):
    def run(features):
        runner, host, device, _ = make(monkeypatch, features=features, draw=draw)
        found = [start(runner, host, 0, PROMPTS[1])]
        for turn in range(12):
            host.admit(1 + turn % 7, PROMPTS[2], generation=turn, temperature=1.5 if turn > 9 else 0.0, seed=turn)
            host.decode(0, 5 + len(found))
            host.chunk(1 + turn % 7, 0, 13, True)
            ids = runner.execute(host.plan()).ids.tolist()
            found.append(ids[0])
            host.release(1 + turn % 7)
        return ids, device.num_replays

    (plain, none), (replayed, some) = run(frozenset()), run(FEATURES)
    assert replayed == plain
    assert none == 0 < some
    assert plain[1] != FlatToy().greedy(PROMPTS[2], 1)[0]


def test_a_row_with_nan_fails_alone(monkeypatch):
    runner, host, _, _ = make(monkeypatch, FlatToy(poison=95))
    for slot, prompt in enumerate((PROMPTS[1], PROMPTS[2], PROMPTS[4])):
        start(runner, host, slot, prompt)
    runner.slots.history[1, 13] = 95
    result = follow(runner, host, {0: 6, 1: 14, 2: 4}).result()
    assert [(error.row, error.message) for error in result.errors] == [(1, "the model's logits are not finite")]
    assert result.offsets.tolist() == [0, 1, 1, 2]
    assert result.ids.tolist() == [FlatToy().greedy(prompt, 2)[1] for prompt in (PROMPTS[1], PROMPTS[4])]
    assert runner.slots.lengths[:3].tolist() == [7, 14, 5]


def test_a_kernel_that_reads_values_shows_while_it_is_recorded(monkeypatch):
    with pytest.raises(RuntimeError, match="tolist is not permitted while work is recorded"):
        make(monkeypatch, ToyModel())


@pytest.mark.parametrize(
    ("changes", "unrecordable", "features", "reason"),
    [
        ({"enforce_eager": True}, (), FEATURES, "no graphs: enforce_eager"),
        ({}, ("paged_attention torch",), FEATURES, "no graphs: the host takes part in paged_attention torch"),
        ({"tensor": 2}, (), {"graphs"}, "no graphs: several ranks meet on the host inside a step"),
        ({}, (), frozenset(("queue",)), "no graphs: fake records none"),
    ],
)
def test_why_there_are_no_graphs(monkeypatch, changes, unrecordable, features, reason):
    device = fake_device(features=features)
    monkeypatch.setattr("octavo.worker.runner.detect", lambda kind: device)
    loaded = Loaded(model=FlatToy(), unrecordable=unrecordable)
    runner = ModelRunner(toy_spec(**changes), lambda checkpoint, **_: loaded)
    assert runner.load().decisions[-1] == reason
    runner.allocate(geometry(1), NUM_PAGES)
    host = Host(geometry(1), NUM_PAGES)
    got = [start(runner, host, 0, PROMPTS[1]), int(follow(runner, host, {0: 6}).result().ids[0])]
    assert got == FlatToy().greedy(PROMPTS[1], 2)
    assert not device.graphs


def test_more_pages_than_a_device_has_room_for_are_refused(monkeypatch):
    device = fake_device(features=FEATURES, kind="cuda", total_memory=2**30)
    device.peak_bytes = 100 * 2**20
    monkeypatch.setattr("octavo.worker.runner.detect", lambda kind: device)
    runner = ModelRunner(toy_spec(), lambda checkpoint, **_: Loaded(model=FlatToy(), unrecordable=()))
    runner.load()
    with pytest.raises(ConfigError, match=r"num_pages must be at most \d+, not 9000000, .* less 132 MiB for graphs"):
        runner.allocate(geometry(1), 9_000_000)
    assert not hasattr(runner, "pool")


def test_what_a_pool_leaves_is_what_the_largest_steps_took(monkeypatch):
    device = fake_device(features=FEATURES, kind="cuda", total_memory=2**30)
    device.peak_bytes = 100 * 2**20
    monkeypatch.setattr("octavo.worker.runner.detect", lambda kind: device)
    runner = ModelRunner(toy_spec(), lambda checkpoint, **_: Loaded(model=FlatToy(), unrecordable=()))
    report = runner.load()
    decision = next(line for line in report.decisions if "page pool" in line)
    assert "less 100 MiB for workspace, less 132 MiB for graphs" in decision
    expected = 2**30 - device.allocated - 232 * 2**20 - 0.1 * 2**30
    assert 9 * 64 * 4 < expected - report.free_bytes < 9 * 64 * 8, "histories, and little else of every slot"
    runner.allocate(geometry(1), 50)
    ledger = runner.ledger.report()
    assert ledger["pool"] == 51 * geometry(1).page_bytes
    assert sum(ledger.values()) == 2**30
    assert ledger["free"] == 2**30 - np.sum([size for owner, size in ledger.items() if owner != "free"])


def test_rows_that_share_a_span_read_it_once(monkeypatch):
    monkeypatch.setattr("octavo.worker.graphs._OFTEN", 1)
    runner, host, device, _ = make(monkeypatch)
    front = PROMPTS[2][:8]
    prompts = {0: [*front, 5], 1: [*front, 7, 11], 2: PROMPTS[3]}
    got = {slot: [start(runner, host, slot, prompt)] for slot, prompt in prompts.items()}
    # Slot 1 loses the pages of its own that hold the front.
    for column in range(4):
        host.place(1, 0, column, host.free.pop())
    span, graphs = int32([8, 0, 1]), len(device.graphs)
    for step in range(9):
        lengths = {slot: len(prompts[slot]) + len(out) for slot, out in got.items()}
        for slot, length in lengths.items():
            host.decode(slot, length)
        if step == 6:
            host.release(1)
            span = int32([0])
        result = runner.execute(host.plan(span=span if step in (0, 6) else None))
        if step == 6:
            got.pop(1)
        for slot, token in zip(lengths, result.ids.tolist(), strict=True):
            if slot in got:
                got[slot].append(token)
        if step == 5:
            assert got[1] == FlatToy().greedy(prompts[1], 7)
            assert len(device.graphs) == graphs + 1
    assert got == {slot: FlatToy().greedy(prompts[slot], 10) for slot in (0, 2)}
    assert not runner.slots.skips.any()
