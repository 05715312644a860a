"""Batches through an engine of this process, with an engine that repeats its prompts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from octavo.base.errors import EngineDeadError, InvalidRequestError
from octavo.frontend.offline import OfflineEngine
from octavo.protocol.control import ResetPrefixCache
from octavo.protocol.request import Abort, FinishChoice, Request
from tests.engine_process.fake_core import FakeCore, Options
from tests.frontend.bytes_model import make_intake, params


def make(max_submitted=4, *, by_priority=False, **options):
    core = FakeCore(Options(**options))
    return OfflineEngine(core, make_intake(), max_submitted=max_submitted, by_priority=by_priority), core


def jobs(engine, prompts, sampling=None, priorities=None):
    count = len(prompts)
    return engine.check(prompts, sampling or [params()] * count, priorities or [0] * count)


def test_answers_come_in_the_order_of_prompts_whatever_finishes_first():
    engine, core = make()
    prompts = [f"p{index}-" for index in range(20)]
    sampling = [params(max_tokens=30 - index) for index in range(20)]
    heard = []
    results = engine.run(jobs(engine, prompts, sampling), heard.append)
    assert [r.prompt for r in results] == prompts
    assert [r.outputs[0].text for r in results] == [(p * 30)[: 30 - i] for i, p in enumerate(prompts)]
    assert sorted(r.request_id for r in heard) == sorted(str(i) for i in range(20))
    assert not core.busy


def test_only_a_few_requests_are_in_the_engine_at_once():
    engine, core = make(max_submitted=4)
    most = 0

    def look(_: object) -> None:
        nonlocal most
        most = max(most, len(core._made) + len(core._waiting))

    engine.run(jobs(engine, ["abc"] * 50, [params(n=2, max_tokens=3)] * 50), look)
    assert most <= 4


def test_a_request_of_more_choices_than_the_bound_still_runs():
    engine, _ = make(max_submitted=2)
    results = engine.run(jobs(engine, ["abc", "xyz"], [params(n=5, max_tokens=3)] * 2), lambda _: None)
    assert [c.text for c in results[0].outputs] == ["abc", "bca", "cab", "abc", "bca"]


def test_priority_decides_who_is_submitted_first():
    engine, core = make(max_submitted=1, by_priority=True)
    engine.run(jobs(engine, ["a", "b", "c"], priorities=[3, -1, 3]), lambda _: None)
    assert [chr(m.tokens[0]) for m in core.messages if isinstance(m, Request)] == ["b", "a", "c"]


def test_stop_strings_are_told_to_the_engine():
    engine, core = make(tokens_per_step=2)
    results = engine.run(jobs(engine, ["abcd"], [params(stop="d", max_tokens=100)]), lambda _: None)
    assert results[0].outputs[0].text == "abc"
    assert [m.num_tokens for m in core.messages if isinstance(m, FinishChoice)] == [4]


def test_one_bad_prompt_names_its_place_and_nothing_was_queued():
    engine, core = make()
    with pytest.raises(InvalidRequestError, match="prompt 1: token id 999") as caught:
        jobs(engine, ["ok", [999], "ok"])
    assert caught.value.field == "prompt"
    assert core.messages == []
    assert [r.outputs[0].text for r in engine.run(jobs(engine, ["ok"]), lambda _: None)] == ["okokokok"]


def test_what_the_engine_refuses_is_in_its_own_answer():
    engine, _ = make()
    results = engine.run(jobs(engine, ["ok", [65] * 950, "ok"]), lambda _: None)
    assert [r.outputs[0].finish_reason for r in results] == ["length", "error", "length"]
    assert results[1].error == "too many pages"


def test_an_interrupt_leaves_nothing_behind():
    engine, core = make()
    heard = 0

    def interrupt(_: object) -> None:
        nonlocal heard
        heard += 1
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.run(jobs(engine, ["abc"] * 9, [params(max_tokens=3 + i) for i in range(9)]), interrupt)
    assert heard == 1
    assert not core.busy
    assert any(isinstance(m, Abort) for m in core.messages)
    assert [r.outputs[0].text for r in engine.run(jobs(engine, ["xy"]), lambda _: None)] == ["xyxyxyxy"]


def test_a_dead_engine_is_told():
    engine, core = make()

    def dead() -> None:
        raise EngineDeadError("gone")

    core.step = dead
    with pytest.raises(EngineDeadError, match="gone"):
        engine.run(jobs(engine, ["abc"]), lambda _: None)


def test_no_prompts_no_answers():
    engine, core = make()
    assert engine.run([], lambda _: None) == []
    assert core.messages == []


def test_control_messages_are_acknowledged():
    engine, _ = make()
    assert engine.control(ResetPrefixCache()).ok


def source(read, count, text="ab"):
    """Yield prompts, and note in `read` how many."""
    for number in range(count):
        read.append(number)
        yield f"{number % 10}{text}", params(max_tokens=3 + number % 5)


def test_a_lazy_source_is_read_as_needed_and_answered_in_order():
    engine, core = make(max_submitted=4)
    read, heard, most = [], [], 0
    for number, output in enumerate(engine.stream(source(read, 3000), 0, heard.append)):
        assert output.request_id == str(number)
        assert output.outputs[0].text == (f"{number % 10}ab" * 3)[: 3 + number % 5]
        most = max(most, len(read) - number)
        assert len(engine._open) <= 4
    assert (len(read), len(heard)) == (3000, 3000)
    assert most <= 4 * 4 + 1
    assert not core.busy


def test_a_slow_first_request_holds_back_the_others_and_not_memory():
    engine, _ = make(max_submitted=2)
    read = []

    def prompts():
        yield "slow", params(max_tokens=900)
        yield from source(read, 500)

    answers = engine.stream(prompts(), 0, lambda _: None)
    assert len(next(answers).outputs[0].token_ids) == 900
    assert len(read) <= 4 * 2
    assert len(list(answers)) == 500


def test_leaving_a_lazy_iteration_leaves_nothing_behind():
    engine, core = make(max_submitted=4)
    answers = engine.stream(source([], 10**9), 0, lambda _: None)
    assert [next(answers).request_id for _ in range(5)] == list("01234")
    answers.close()
    assert not core.busy
    assert engine._open == {}


def test_a_bad_prompt_is_raised_when_it_is_reached():
    engine, core = make(max_submitted=1)

    def prompts():
        yield from source([], 6)
        yield [999], params()

    answers = engine.stream(prompts(), 0, lambda _: None)
    got = []
    with pytest.raises(InvalidRequestError, match="prompt 6: token id 999"):
        got.extend(output.request_id for output in answers)
    assert not core.busy


def test_a_batch_inside_an_iteration_is_served_beside_it():
    engine, core = make(max_submitted=2)
    for number, output in enumerate(engine.stream(source([], 20), 0, lambda _: None)):
        (inner,) = engine.run(jobs(engine, ["xy"]), lambda _: None)
        assert inner.outputs[0].text == "xyxyxyxy"
        assert output.request_id == str(number)
    assert not core.busy


def test_threads_share_the_steps():
    engine, core = make(max_submitted=4)
    with ThreadPoolExecutor(4) as threads:
        asked = [[f"{thread}-{number}" for number in range(30)] for thread in range(4)]
        found = list(threads.map(lambda prompts: engine.run(jobs(engine, prompts), lambda _: None), asked))
    for prompts, outputs in zip(asked, found, strict=True):
        assert [output.outputs[0].text for output in outputs] == [(prompt * 8)[:8] for prompt in prompts]
    assert not core.busy
