"""Draws cases: first every pair of values of any two features at least once, then at random."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from tests.equivalence.features import FEATURES, Case, costly, possible

Values = dict[str, str]
Possible = Callable[[Mapping[str, str]], bool]
_NUM_CANDIDATES = 12
# How often a row of a random combination may have a costly value: those take ten times as long as all others, and a second spent
# on others tries more.
_COSTLY_SHARE = 0.25


def all_pairs(rows: Mapping[str, Sequence[str]], allowed: Possible, rng: random.Random) -> list[Values]:
    """Return few combinations that hold every allowed pair of values of any two rows; greedy.

    allowed: tells of values of some rows whether they can be completed.
    """
    uncovered = {
        frozenset(pair)
        for one, other in itertools.combinations(rows, 2)
        for pair in itertools.product(((one, x) for x in rows[one]), ((other, y) for y in rows[other]))
        if allowed(dict(pair))
    }
    found: list[Values] = []
    while uncovered:
        left = sorted(uncovered, key=sorted)
        starts = [dict(rng.choice(left)) for _ in range(_NUM_CANDIDATES)]
        best = max((_complete(start, rows, allowed, uncovered, rng) for start in starts), key=lambda one: one[1])
        found.append(best[0])
        uncovered.difference_update(map(frozenset, itertools.combinations(best[0].items(), 2)))
    return found


def _complete(
    start: Values, rows: Mapping[str, Sequence[str]], allowed: Possible, uncovered: set[frozenset], rng: random.Random
) -> tuple[Values, int]:
    """Return the start with a value for every row, each the one that covers most, and how many pairs it covers."""
    values, covered = dict(start), 1
    for row in rng.sample(sorted(rows), len(rows)):
        if row in values:
            continue
        options = [value for value in rng.sample(rows[row], len(rows[row])) if allowed({**values, row: value})]
        gains = [sum(frozenset([(row, value), item]) in uncovered for item in values.items()) for value in options]
        values[row] = options[gains.index(max(gains))]
        covered += max(gains)
    return {row: values[row] for row in rows}, covered


def at_random(rows: Mapping[str, Sequence[str]], allowed: Possible, rng: random.Random) -> Iterator[Values]:
    """Yield allowed combinations, each row's values equally often as far as that goes, but for costly ones."""
    while True:
        values: Values = {}
        for row in rng.sample(sorted(rows), len(rows)):
            options = [value for value in rows[row] if allowed({**values, row: value})]
            quick = [value for value in options if not costly({row: value})]
            values[row] = rng.choice(quick if quick and rng.random() >= _COSTLY_SHARE else options)
        yield {row: values[row] for row in rows}


def _rows(plain: Collection[str]) -> dict[str, list[str]]:
    """Return the values of every feature; of those in `plain` the first alone."""
    return {name: list(row)[:1] if name in plain else list(row) for name, row in FEATURES.items()}


def few_engines(rng: random.Random, plain: Collection[str] = ()) -> list[Values]:
    """Return a few combinations of the engine's features, with every value at least once."""
    rows = {name: row for name, row in _rows(plain).items() if any(FEATURES[name][value].engine for value in row)}
    orders = {name: rng.sample(values, len(values)) for name, values in rows.items()}
    count = max(map(len, rows.values()))
    return [{name: order[turn % len(order)] for name, order in orders.items()} for turn in range(count)]


def allowed(values: Mapping[str, str], few: Sequence[Values]) -> bool:
    """Whether values of some features can be completed: what is costly has one of a few combinations of engine options."""
    if not costly(values):
        return possible(values)
    return any(
        possible({**values, **engine})
        for engine in few
        if all(values.get(name, value) == value for name, value in engine.items())
    )


def draw_cases(count: int, seed: int, plain: Collection[str] = ()) -> list[Case]:
    """Return at least `count` cases, all pairs first; of each half, cases with the same engine stand together, and costly
    ones of both halves behind the pairs: their engines are started once.

    plain: features that a model cannot have.
    """
    rng = random.Random(seed)
    few = few_engines(rng, plain)

    def fits(values: Mapping[str, str]) -> bool:
        return allowed(values, few)

    rows = _rows(plain)
    pairs = all_pairs(rows, fits, rng)
    more = list(itertools.islice(at_random(rows, fits, rng), max(0, count - len(pairs))))

    def engine(values: Values) -> list[str]:
        place = values["place"]
        return ["service" if place == "http" else place, *(values[name] for name in few[0])]

    halves = [[values for values in half if not costly(values)] for half in (pairs, more)]
    halves.insert(1, [values for values in (*pairs, *more) if costly(values)])
    return [Case(values, rng.randrange(10**6)) for half in halves for values in sorted(half, key=engine)]
