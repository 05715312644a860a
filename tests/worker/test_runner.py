"""Hand-written plans against the toy model without pages: same greedy ids, whatever the plans do."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch

from octavo.nn.parallel.mesh import Mesh
from octavo.protocol.arrays import int32, rows32
from octavo.protocol.control import Barrier, Call, Control, ResetPrefixCache
from octavo.protocol.step import DEVICE, BlobRef, Transfer
from octavo.worker.runner import ModelRunner
from octavo.worker.spec import Weights
from tests.fake_device import FakeDevice
from tests.worker.toy import BLOCK, WINDOW, Host, Loaded, ToyModel, geometry, toy_spec

NUM_PAGES = 120
PROMPTS = [[(7 * i + 3 * j * j) % 90 for j in range(n)] for i, n in enumerate((1, 5, 13, 22))]


def make(monkeypatch, bundle=1, poison=None, **changes):
    """A runner whose memory starts as NaN everywhere, and a host for it."""
    monkeypatch.setattr("octavo.worker.runner.detect", lambda kind: FakeDevice())
    model = ToyModel(poison)
    runner = ModelRunner(toy_spec(**changes), lambda checkpoint, **_: Loaded(model=model))
    runner.load()
    runner.allocate(geometry(bundle), NUM_PAGES)
    return runner, Host(geometry(bundle), NUM_PAGES), model


def prefill(runner, host, slot, tokens, chunk=64, **params):
    """Admit and prefill in chunks; returns the first sampled id."""
    host.admit(slot, tokens, **params)
    for start in range(0, len(tokens), chunk):
        count = min(chunk, len(tokens) - start)
        host.chunk(slot, start, count, start + count == len(tokens))
        result = runner.execute(host.plan())
        if start + count < len(tokens):
            assert result.offsets.tolist() == [0]
    return int(result.ids[0])


def decode(runner, host, lengths, **more):
    """One step of one token each; lengths: slot -> tokens known now."""
    for slot, length in lengths.items():
        host.decode(slot, length)
    return runner.execute(host.plan(**more))


@pytest.mark.parametrize("bundle", [1, 2])
@pytest.mark.parametrize("chunk", [1, 3, 4, 64])
def test_chunks_and_decodes_equal_whole_passes(monkeypatch, bundle, chunk):
    runner, host, model = make(monkeypatch, bundle)
    got = [[prefill(runner, host, slot, prompt, chunk)] for slot, prompt in enumerate(PROMPTS)]
    for step in range(12):
        result = decode(runner, host, {slot: len(p) + step + 1 for slot, p in enumerate(PROMPTS)})
        assert result.offsets.tolist() == [0, 1, 2, 3, 4]
        for row, out in enumerate(got):
            out.append(int(result.ids[row]))
    assert got == [model.greedy(prompt, 13) for prompt in PROMPTS]


def test_a_step_mixes_chunks_and_decodes_and_samples_some_rows(monkeypatch):
    runner, host, model = make(monkeypatch)
    first = prefill(runner, host, 5, PROMPTS[2])
    host.admit(1, PROMPTS[3])
    host.admit(3, PROMPTS[1])
    host.chunk(1, 0, 9, False)
    host.decode(5, len(PROMPTS[2]) + 1)
    host.chunk(3, 0, 5, True)
    result = runner.execute(host.plan())
    assert result.offsets.tolist() == [0, 1, 2]
    assert [first, int(result.ids[0])] == model.greedy(PROMPTS[2], 2)
    assert [int(result.ids[1])] == model.greedy(PROMPTS[1], 1)
    host.decode(3, 6)
    host.chunk(1, 9, 13, True)
    result = runner.execute(host.plan())
    assert result.ids.tolist() == [model.greedy(PROMPTS[1], 2)[1], model.greedy(PROMPTS[3], 1)[0]]


def test_pages_that_left_the_window_are_not_missed(monkeypatch):
    runner, host, model = make(monkeypatch)
    got = [prefill(runner, host, 0, PROMPTS[3], 4)]
    for step in range(20):
        length = len(PROMPTS[3]) + step + 1
        host.forget(0, length - WINDOW)
        got.append(int(decode(runner, host, {0: length}).ids[0]))
    assert got == model.greedy(PROMPTS[3], 21)
    assert sum(page >= 0 for (group, _), page in host.pages[0].items() if group == 1) <= WINDOW // BLOCK + 2


def test_a_preempted_sequence_comes_back_into_another_slot(monkeypatch):
    runner, host, model = make(monkeypatch)
    prompt, expected = PROMPTS[1], model.greedy(PROMPTS[1], 9)
    got = [prefill(runner, host, 2, prompt)]
    got += [int(decode(runner, host, {2: len(prompt) + i}).ids[0]) for i in range(1, 4)]
    host.release(2)
    runner.execute(host.plan())
    runner.pool.memory.fill_(255)  # What it had computed is lost.
    history = prompt + got
    got.append(prefill(runner, host, 6, history, 5, num_prompt=len(prompt), generation=1))
    got += [int(decode(runner, host, {6: len(prompt) + i}).ids[0]) for i in range(5, 9)]
    assert got == expected


def test_a_slot_changes_hands_within_a_plan(monkeypatch):
    runner, host, model = make(monkeypatch)
    prefill(runner, host, 0, PROMPTS[3], temperature=1.0, seed=1, min_tokens=3, stop_ids=(4,), logprobs=2)
    old = dict(host.pages[0])
    host.release(0)
    # Table rows of the old owner may still be in the plan, before those of the new one.
    stale = [(group, 0, column, page) for (group, column), page in old.items()]
    host.admit(0, PROMPTS[1], generation=1)
    host.chunk(0, 0, 5, True)
    plan = host.plan()
    plan = msgspec.structs.replace(plan, table=np.concatenate([rows32(stale, 4), plan.table]))
    result = runner.execute(plan)
    assert result.logprobs is None
    assert result.ids.tolist() == model.greedy(PROMPTS[1], 1)
    assert runner.slots.generations[0] == 1
    with pytest.raises(AssertionError, match="slot 0 is taken"):
        prefill(runner, host, 0, PROMPTS[1])


def test_stale_rows_are_harmless(monkeypatch):
    runner, host, model = make(monkeypatch, max_model_len=16)
    prompt = PROMPTS[2][:12]
    got = [prefill(runner, host, 1, prompt)]
    prefill(runner, host, 0, PROMPTS[1])
    # The host ended it long ago; it goes on past the context's end.
    host.grow(0, 16)
    for length in range(6, 20):
        host.decode(1, len(prompt) + 1) if length == 10 else None
        host.decode(0, min(length, 16))
        result = runner.execute(host.plan())
        if length == 10:
            got.append(int(result.ids[0]))
    assert int(runner.slots.lengths[0]) == 16
    # And after its slot was released, while its pages belong to another.
    host.release(0)
    before = runner.pool.memory[:-1].clone()
    plan = host.plan()
    runner.execute(
        msgspec.structs.replace(plan, slots=int32([0]), starts=int32([-1]), counts=int32([1]), samples=np.ones(1, bool))
    )
    assert torch.equal(runner.pool.memory[:-1], before)
    assert got == model.greedy(prompt, 2)


def test_a_fork_shares_full_blocks_and_copies_the_open_one(monkeypatch):
    runner, host, model = make(monkeypatch)
    prompt = PROMPTS[2]  # 13 tokens: three blocks and one token.
    first = prefill(runner, host, 0, prompt)
    host.admit(1, prompt, computed=12, choice=1)
    copies = []
    for (group, column), page in list(host.pages[0].items()):
        per_block = host.geometry.groups[group].pages_per_block
        if column // per_block < 3:
            host.place(1, group, column, page)
        else:
            host.place(1, group, column, host.free.pop())
            copies.append((DEVICE, page, DEVICE, host.pages[1][group, column]))
    assert len(copies) == 3
    host.chunk(1, 12, 1, True)
    host.decode(0, 14)
    result = runner.execute(host.plan(copies_before=rows32(copies, 4)))
    assert result.ids.tolist() == [first, model.greedy(prompt, 2)[1]]
    # Each writes its own open block: forced apart, they do not disturb one another.
    runner.slots.history[1, 13] = 50
    result = decode(runner, host, {0: 15, 1: 14})
    assert result.ids.tolist() == [model.greedy(prompt, 3)[2], model.greedy([*prompt, 50], 1)[0]]


def test_copies_after_see_what_the_step_wrote(monkeypatch):
    runner, host, _ = make(monkeypatch)
    host.admit(0, PROMPTS[1])
    host.chunk(0, 0, 5, True)
    source, target = host.pages[0][0, 0], host.free.pop()
    before = runner.pool.memory[source].clone()
    runner.execute(host.plan(copies_after=rows32([(DEVICE, source, DEVICE, target)], 4)))
    assert torch.equal(runner.pool.memory[target], runner.pool.memory[source])
    assert not torch.equal(runner.pool.memory[target], before)


def test_a_row_with_nan_fails_alone_and_does_not_grow(monkeypatch):
    runner, host, model = make(monkeypatch, poison=95)
    for slot, prompt in enumerate((PROMPTS[1], [3, 95, 4], PROMPTS[2])):
        host.admit(slot, prompt, logprobs=1)
    host.chunk(2, 0, 13, True)
    host.chunk(1, 0, 3, True)
    host.chunk(0, 0, 5, True)
    result = runner.execute(host.plan())
    assert [error.row for error in result.errors] == [1]
    assert "not finite" in result.errors[0].message
    assert result.offsets.tolist() == [0, 1, 1, 2]
    assert result.ids.tolist() == [*model.greedy(PROMPTS[2], 1), *model.greedy(PROMPTS[1], 1)]
    assert result.logprobs is not None
    assert result.logprobs.top_ids[:, 0].tolist() == result.ids.tolist()
    assert runner.slots.lengths[:3].tolist() == [6, 3, 14]
    # The next plan was made before the host knew: the failed row fails again, the others go on.
    result = decode(runner, host, {0: 6, 1: 4, 2: 14})
    assert [error.row for error in result.errors] == [1]
    assert result.ids.tolist() == [model.greedy(PROMPTS[1], 2)[1], model.greedy(PROMPTS[2], 2)[1]]


def test_sampled_text_depends_on_seed_and_choice_alone(monkeypatch):
    def run(others, slot, chunk):
        runner, host, _ = make(monkeypatch)
        for other in others:
            prefill(runner, host, other, PROMPTS[other % 4], temperature=1.3, seed=other)
        prompt, out = PROMPTS[1], []
        out.append(prefill(runner, host, slot, prompt, chunk, temperature=0.9, top_p=0.95, seed=77, choice=2))
        for step in range(1, 8):
            lengths = {other: len(PROMPTS[other % 4]) + step for other in others} | {slot: len(prompt) + step}
            out.append(int(decode(runner, host, lengths).ids[-1]))
        return out

    alone = run([], 0, 64)
    assert run([0, 1, 2, 3], 7, 2) == alone
    assert len(set(alone)) > 3


def test_logprobs_are_the_models_own(monkeypatch):
    runner, host, model = make(monkeypatch)
    host.admit(0, PROMPTS[1], temperature=0.3, top_k=2, logprobs=3, seed=5)
    host.admit(1, PROMPTS[2])
    host.chunk(1, 0, 13, True)
    host.chunk(0, 0, 5, True)
    result = runner.execute(host.plan())
    assert result.logprobs is not None
    assert result.logprobs.wanted.tolist() == [False, True]
    expected = model.logits(PROMPTS[1])[-1].double().log_softmax(0)
    np.testing.assert_allclose(result.logprobs.chosen[1], expected[int(result.ids[1])], atol=1e-5)
    assert result.logprobs.top_ids[1].tolist() == expected.topk(3).indices.tolist()
    assert result.logprobs.top_ids[0].tolist() == [-1, -1, -1]


def test_min_tokens_keeps_stop_ids_back_along_a_sequence(monkeypatch):
    runner, host, model = make(monkeypatch)
    stops = sorted(set(model.greedy(PROMPTS[1], 6)))
    tokens = list(PROMPTS[1])
    for count in range(6):
        logits = model.logits(tokens)[-1]
        if count < 3:
            logits[stops] = -float("inf")
        tokens.append(int(logits.argmax()))
    got = [prefill(runner, host, 0, PROMPTS[1], min_tokens=3, stop_ids=stops)]
    got += [int(decode(runner, host, {0: 5 + i}).ids[0]) for i in range(1, 6)]
    assert got == tokens[5:]
    assert got != model.greedy(PROMPTS[1], 6)


def test_empty_plans_and_dummies_change_nothing(monkeypatch):
    runner, host, model = make(monkeypatch)
    got = [prefill(runner, host, 0, PROMPTS[1])]
    state = (runner.pool.memory[:-1].clone(), runner.slots.history.clone(), runner.slots.lengths.clone())
    model.num_tokens.clear()
    empty = runner.execute(host.plan())
    dummy = runner.execute(host.plan(dummy=True, shape=6))
    smallest = runner.execute(host.plan(dummy=True))
    assert model.num_tokens == [6, 1]
    for result in (empty, dummy, smallest):
        assert (result.offsets.tolist(), result.ids.tolist(), result.errors) == ([0], [], ())
    assert [empty.plan, dummy.plan, smallest.plan] == [1, 2, 3]
    assert all(
        torch.equal(a, b)
        for a, b in zip(state, (runner.pool.memory[:-1], runner.slots.history, runner.slots.lengths), strict=True)
    )
    got.append(int(decode(runner, host, {0: 6}).ids[0]))
    assert got == model.greedy(PROMPTS[1], 2)


def test_controls_are_acknowledged_in_order(monkeypatch):
    runner, host, _ = make(monkeypatch)
    commands = (
        Barrier(),
        ResetPrefixCache(),
        Call(method="describe"),
        Call(method="decribe"),
        Call(method="describe", arguments=b"\x91\x01"),
    )
    result = runner.execute(host.plan(controls=tuple(Control(ticket=9 - i, command=c) for i, c in enumerate(commands))))
    assert [ack.ticket for ack in result.acks] == [9, 8, 7, 6, 5]
    assert [ack.ok for ack in result.acks] == [True, True, True, False, False]
    assert msgspec.msgpack.decode(result.acks[2].value)["num_pages"] == NUM_PAGES
    assert "did you mean 'describe'" in result.acks[3].message
    assert "takes no arguments" in result.acks[4].message


def test_transfers_fail_until_there_are_connectors(monkeypatch):
    runner, host, _ = make(monkeypatch)
    blob = BlobRef(place="file:/x", dtype="uint8", shape=(1,), owner="test")
    transfer = Transfer(ticket=31, slot=0, generation=0, source=blob, pages=rows32([(0, 0, 1)], 3))
    result = runner.execute(host.plan(transfers=(transfer,)))
    assert (result.failed, result.finished) == ((31,), ())


def test_the_report_says_what_was_loaded(monkeypatch):
    monkeypatch.setattr("octavo.worker.runner.detect", lambda kind: FakeDevice())
    asked = {}

    def assemble(checkpoint, **options):
        asked.update(options, name=checkpoint.name)
        return Loaded()

    report = ModelRunner(toy_spec(kv_cache_memory=4096, weights=Weights(seed=5, load_format="dummy")), assemble).load()
    assert report.layers == Loaded().layers
    assert report.free_bytes == 4096
    assert report.decisions == ("toy", "page pool 0 MiB: asked for", "no graphs: fake records none")
    device = asked.pop("device")
    assert isinstance(device, FakeDevice)
    assert asked.pop("mesh") == Mesh()
    assert asked == {
        "name": "toy",
        "dtype": "float64",
        "max_model_len": 64,
        "weights": Weights(seed=5, load_format="dummy"),
    }
