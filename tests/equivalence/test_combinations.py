"""The part of the combinations that is run with every change; `python -m tests.equivalence` runs more."""

from __future__ import annotations

import pytest

from tests.equivalence.draw import draw_cases
from tests.equivalence.features import costly
from tests.equivalence.models import MODELS, PLAIN, PROMPTS
from tests.equivalence.runner import Report, Runner

# All models together; the pairs alone are about 30 for each.
NUM_COMBINATIONS = 504


@pytest.mark.parametrize("start", ["quick", "costly"])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.usefixtures("forked_engines")
def test_whatever_is_on_the_answers_are_the_same(tiny_model, name, start):
    cases = draw_cases(NUM_COMBINATIONS // len(MODELS), seed=list(MODELS).index(name), plain=PLAIN.get(name, ()))
    here = [case for case in cases if costly(case.values) == (start == "costly")]
    report = Report()
    Runner(tiny_model(name), report).run(here)
    print(f"{name}, {start}: {report}")
    assert report.differences == [], "\n" + "\n".join(report.differences)
    assert report.cases == len(here) > 0
    assert report.ties < 0.05 * report.answers


@pytest.mark.parametrize("name", MODELS)
def test_the_oracles_answers_can_tell_one_context_from_another(tiny_model, name):
    expected = tiny_model(name).expected(penalized=False)
    assert sum(len(one.tokens) - one.num_certain for one in expected.values()) < 0.1 * sum(
        len(one.tokens) for one in expected.values()
    )
    # Answers were made with the oracle's cache, which must have changed nothing.
    for (prompt, _), one in expected.items():
        alone = tiny_model(name).logprobs_of([*PROMPTS[prompt], *one.tokens])[-len(one.tokens) :]
        assert max(abs(a - b) for a, b in zip(alone, one.logprobs, strict=True)) < 1e-4
    # The same prompt stands in the list twice; greedy answers to all others differ, and none ends in a short loop.
    greedy = {tuple(one.tokens) for (_, choice), one in expected.items() if choice is None}
    drawn = {tuple(one.tokens) for (_, choice), one in expected.items() if choice is not None}
    assert len(greedy) == len({prompt for prompt, _ in expected}) - 1
    assert len(drawn) == sum(choice is not None for _, choice in expected)
    assert min(len({*tokens[-12:]}) for tokens in greedy) >= 3
