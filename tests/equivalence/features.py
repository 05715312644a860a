"""The table of features: whatever is chosen here, the answers are the same. A new feature is one row.

The first value of a row is the plain one; a case names only what differs from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What requests come and how; built from the values of a case.

    batch: requests whose answers are compared. order: at-once, shuffled or staggered. warm: the same prompts once before.
    small_pool: so few pages that sequences are preempted. priorities: every request has its own. stream: pieces instead of
    whole answers. place: process, service, http or fronts. aborts: neighbours come and are aborted. sampling: greedy, seeded (at
    temperature 1), or mixed. penalized: what has come before counts against a token. ending: what ends answers: length, token
    or string. formed: whose answers have a grammar: none, some or all.
    """

    batch: int = 1
    order: str = "at-once"
    warm: bool = False
    small_pool: bool = False
    priorities: bool = False
    stream: bool = False
    place: str = "process"
    aborts: bool = False
    sampling: str = "greedy"
    penalized: bool = False
    ending: str = "length"
    formed: str = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Happened:
    """What an engine did in a case, as far as it can be seen. cached: prompt tokens that were not computed.

    tokens, pieces: of the compared answers, and outputs they came in. cut: neighbours aborted before they had finished.
    scored: log-probabilities of every prompt came.
    """

    scenario: Scenario
    preemptions: int
    cached: int
    tokens: int
    pieces: int
    cut: int
    scored: bool


# Whether what a value is about took place: a feature that does nothing proves nothing.
Proof = Callable[[Happened], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """What a value changes. engine: options. request: fields of every SamplingParams. scenario: fields of Scenario.

    costly: its engine takes seconds to start, so that a draw has it with a few combinations of engine options only.
    """

    engine: Mapping[str, Any] = field(default_factory=dict)
    request: Mapping[str, Any] = field(default_factory=dict)
    scenario: Mapping[str, Any] = field(default_factory=dict)
    proof: Proof = lambda happened: True
    costly: bool = False


def _engine(option: str, *values: Any) -> dict[str, Value]:
    return {str(value): Value(engine={option: value}) for value in values}


def _scenario(name: str, *values: Any) -> dict[str, Value]:
    return {str(value): Value(scenario={name: value}) for value in values}


def _here(proof: Proof) -> Proof:
    """Ask for a proof in this process only, where steps can be counted: elsewhere time decides what meets what."""
    return lambda happened: happened.scenario.place != "process" or proof(happened)


FEATURES: dict[str, dict[str, Value]] = {
    "prefix": {
        "off": Value(engine={"enable_prefix_caching": False}, proof=lambda happened: happened.cached == 0),
        "on": Value(engine={"enable_prefix_caching": True}),
        "warm": Value(
            engine={"enable_prefix_caching": True},
            scenario={"warm": True},
            proof=lambda happened: happened.cached > 0 or happened.scenario.small_pool or happened.scored,
        ),
    },
    # Whether pages that rows share are read once.
    "spans": _engine("least_shared_tokens", 16384, 16),
    "budget": _engine("max_num_batched_tokens", 512, 64, 33, 16),
    "batch": _scenario("batch", 1, 4, 20),
    "order": _scenario("order", "at-once", "shuffled", "staggered"),
    "pool": {
        "large": Value(engine={"num_pages": 2000}),
        # The number of pages follows from the model's geometry.
        "small": Value(scenario={"small_pool": True}, proof=_here(lambda happened: happened.preemptions > 0)),
    },
    "depth": {"one": Value(engine={"async_scheduling": False}), "ahead": Value(engine={"async_scheduling": True})},
    "policy": {
        "fcfs": Value(engine={"scheduling_policy": "fcfs"}),
        "priority": Value(engine={"scheduling_policy": "priority"}, scenario={"priorities": True}),
    },
    # Where steps are recorded.
    "graphs": {"replayed": Value(), "none": Value(engine={"enforce_eager": True})},
    "block": _engine("block_size", 16, 32, 64),
    "slots": _engine("max_num_seqs", 64, 3),
    "answers": {
        "whole": Value(),
        "stream": Value(
            scenario={"stream": True},
            # An answer of one token is one piece.
            proof=_here(lambda happened: happened.pieces > happened.scenario.batch or happened.tokens < 10),
        ),
    },
    "place": {
        "process": Value(),
        "service": Value(scenario={"place": "service"}, costly=True),
        "http": Value(scenario={"place": "http"}, costly=True),
        # Two fronts of one engine, which take turns.
        "fronts": Value(scenario={"place": "fronts"}, costly=True),
    },
    "ranks": {
        "one": Value(),
        "tensor": Value(engine={"tensor_parallel_size": 2}, costly=True),
        "pipeline": Value(engine={"pipeline_parallel_size": 2}, costly=True),
        "both": Value(engine={"tensor_parallel_size": 2, "pipeline_parallel_size": 2}, costly=True),
    },
    "aborts": {
        "none": Value(),
        "some": Value(scenario={"aborts": True}, proof=_here(lambda happened: happened.cut > 0)),
    },
    "choices": {str(n): Value(request={"n": n}) for n in (1, 3)},
    "sampling": _scenario("sampling", "greedy", "seeded", "mixed"),
    "penalties": _scenario("penalized", False, True),
    # They change nothing, and are applied all the same.
    "masks": {
        "off": Value(),
        "on": Value(
            request={"logit_bias": {0: 0.0}, "allowed_token_ids": (*range(151),), "bad_words": ("<150> <003>" * 3,)}
        ),
    },
    "logprobs": {"off": Value(), "on": Value(request={"logprobs": 2})},
    "scores": {
        "off": Value(),
        # Then nothing is read from the cache.
        "on": Value(request={"prompt_logprobs": 1}, proof=lambda happened: happened.scored),
    },
    "ending": _scenario("ending", "length", "token", "string"),
    # Only words with an odd number may come.
    "grammar": _scenario("formed", "none", "all", "some"),
}


@dataclass(frozen=True, slots=True)
class Case:
    """One value of every feature, and a seed for what they leave open: which prompts, lengths, arrivals."""

    values: Mapping[str, str]
    seed: int

    @staticmethod
    def parse(text: str) -> Case:
        """Read what `str` writes; features that are not named are plain."""
        given = dict(part.split("=", 1) for part in text.split())
        seed = int(given.pop("seed", 0))
        for name, value in given.items():
            if value not in FEATURES.get(name, ()):
                known = "; ".join(f"{row} = {', '.join(values)}" for row, values in FEATURES.items())
                raise ValueError(f"no such value: {name}={value}. There are: {known}")
        return Case({name: given.get(name, next(iter(row))) for name, row in FEATURES.items()}, seed)

    def __str__(self) -> str:
        differing = [f"{name}={value}" for name, value in self.values.items() if value != next(iter(FEATURES[name]))]
        return " ".join([*differing, f"seed={self.seed}"])

    @property
    def chosen(self) -> list[tuple[str, Value]]:
        """The values, with their names."""
        return [(f"{name}={value}", FEATURES[name][value]) for name, value in self.values.items()]

    @property
    def engine(self) -> dict[str, Any]:
        """Engine options of all values together."""
        return {name: option for _, value in self.chosen for name, option in value.engine.items()}

    @property
    def request(self) -> dict[str, Any]:
        """SamplingParams fields of all values together."""
        return {name: option for _, value in self.chosen for name, option in value.request.items()}

    @property
    def scenario(self) -> Scenario:
        """The scenario of all values together."""
        return Scenario(**{name: option for _, value in self.chosen for name, option in value.scenario.items()})


def costly(values: Mapping[str, str]) -> bool:
    """Whether an engine for these values, of some of the features, takes seconds to start."""
    return any(FEATURES[name][value].costly for name, value in values.items())


def possible(values: Mapping[str, str]) -> bool:
    """Whether these values, of some of the features, make sense together."""
    # One sequence cannot push another out of the pool.
    return not (values.get("pool") == "small" and values.get("batch") == "1")
