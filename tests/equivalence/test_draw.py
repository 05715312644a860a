"""Drawing covers what it promises, and a case survives being written down."""

from __future__ import annotations

import itertools
import random

import pytest

from tests.equivalence.draw import all_pairs, allowed, draw_cases, few_engines
from tests.equivalence.features import FEATURES, Case, costly, possible


def pairs_of(rows):
    return {
        frozenset(pair)
        for one, other in itertools.combinations(rows, 2)
        for pair in itertools.product(((one, x) for x in rows[one]), ((other, y) for y in rows[other]))
    }


def test_every_allowed_pair_is_there_and_no_other():
    rows = {"a": "123", "b": "12", "c": "1234", "d": "12"}

    def allowed(values):
        return not (values.get("a") == "1" and values.get("c") in ("2", "3"))

    found = all_pairs(rows, allowed, random.Random(5))
    covered = {frozenset(pair) for values in found for pair in itertools.combinations(values.items(), 2)}
    forbidden = {frozenset([("a", "1"), ("c", value)]) for value in "23"}
    assert covered == pairs_of(rows) - forbidden
    # 12 pairs of the two longest rows bound it from below.
    assert len(found) <= 15


@pytest.mark.parametrize("seed", range(5))
def test_a_draw_holds_every_pair_of_features(seed):
    cases = draw_cases(1, seed)
    covered = {frozenset(pair) for case in cases for pair in itertools.combinations(case.values.items(), 2)}
    few = few_engines(random.Random(seed))
    wanted = {pair for pair in pairs_of(FEATURES) if allowed(dict(pair), few)}
    assert {pair for pair in pairs_of(FEATURES) if possible(dict(pair)) and not costly(dict(pair))} <= wanted
    assert wanted - covered == set()
    assert len(cases) <= 35
    assert [str(case) for case in cases] == [str(case) for case in draw_cases(1, seed)]


def test_engine_processes_are_few_and_draws_go_on_at_random():
    cases = draw_cases(200, 1)
    assert len(cases) == 200
    assert len({str(case) for case in cases}) == 200
    assert all(possible(case.values) for case in cases)
    assert len({str(case.engine) for case in cases if costly(case.values)}) <= 5
    assert len({str(case.engine) for case in cases if not costly(case.values)}) > 50
    assert [str(case) for case in draw_cases(200, 2)] != [str(case) for case in cases]


def test_a_case_is_read_as_it_was_written():
    for case in draw_cases(1, 3):
        assert Case.parse(str(case)) == case
    plain = Case.parse("seed=4")
    assert str(plain) == "seed=4"
    assert plain.values == {name: next(iter(row)) for name, row in FEATURES.items()}
    with pytest.raises(ValueError, match=r"no such value: budget=17.*budget = 512, 64, 33, 16"):
        Case.parse("budget=17")


def test_every_value_changes_something():
    plain = Case.parse("")
    for name, row in FEATURES.items():
        for value in list(row)[1:]:
            case = Case.parse(f"{name}={value}")
            assert (case.engine, case.request, case.scenario) != (plain.engine, plain.request, plain.scenario)
