"""From a case to the requests that come, and from the oracle's answer to the one that a request must get."""

from __future__ import annotations

import random
from dataclasses import dataclass

from octavo.protocol.sampling import SamplingParams
from tests.equivalence.features import Case, Scenario
from tests.equivalence.models import (
    CACHEABLE,
    EOS,
    FORM,
    GROWERS,
    GROWN,
    LONGEST_ANSWER,
    PENALTIES,
    PROMPTS,
    Expected,
    TinyModel,
    seed_of,
    words,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A request. prompt: index into PROMPTS. arrival: in steps. abort_after: steps after its arrival; None: it is compared."""

    prompt: int
    params: SamplingParams
    priority: int = 0
    arrival: int = 0
    abort_after: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One answer. logprobs: of the tokens, None if none were asked for."""

    ids: list[int]
    text: str
    finish_reason: str | None
    logprobs: list[float] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a job got. cached: prompt tokens that were not computed. pieces: outputs it came in.

    prompt_logprobs: of the prompt's tokens but the first.
    """

    choices: list[Choice]
    cached: int
    pieces: int
    prompt_logprobs: list[float] | None = None


def make_jobs(case: Case, model: TinyModel) -> list[Job]:
    """Return a case's requests in order of arrival."""
    rng, scenario = random.Random(case.seed), case.scenario
    first = [*(GROWERS if scenario.small_pool else ()), *(rng.sample(CACHEABLE, 1) if scenario.warm else ())]
    rest = rng.sample([prompt for prompt in range(len(PROMPTS)) if prompt not in first], len(PROMPTS) - len(first))
    prompts = sorted([*first, *rest][: scenario.batch])
    if scenario.order != "at-once":
        # Growers come first, so that they meet.
        later = len(GROWERS) if scenario.small_pool else 0
        prompts[later:] = rng.sample(prompts[later:], len(prompts) - later)
    jobs: list[Job] = []
    arrival = 0
    for prompt in prompts:
        grower = scenario.small_pool and prompt in GROWERS
        arrival += rng.randint(1, 5) if scenario.order == "staggered" and not grower else 0
        params = _params(case, model, prompt, rng, longest=grower)
        priority = -3 if grower else rng.randint(-2, 2)
        jobs.append(Job(prompt=prompt, params=params, priority=priority if scenario.priorities else 0, arrival=arrival))
    if scenario.aborts:
        jobs += [_neighbour(rng, case, arrival) for _ in range(2 + scenario.batch // 4)]
    return sorted(jobs, key=lambda job: job.arrival)


def _neighbour(rng: random.Random, case: Case, last: int) -> Job:
    """Return a request that is aborted: while it waits, in its prompt or in its answer."""
    params = SamplingParams(temperature=0.0, max_tokens=LONGEST_ANSWER, ignore_eos=True, **case.request)
    return Job(
        prompt=rng.randrange(len(PROMPTS)),
        params=params,
        priority=rng.randint(-2, 2) if case.scenario.priorities else 0,
        arrival=rng.randint(0, last + 2),
        abort_after=rng.choice((0, 1, 2, 3, 5, 8)),
    )


def _params(case: Case, model: TinyModel, prompt: int, rng: random.Random, *, longest: bool) -> SamplingParams:
    scenario = case.scenario
    fields = {**case.request, "max_tokens": GROWN if longest else rng.randint(1, LONGEST_ANSWER)}
    drawn = scenario.sampling == "seeded" or (scenario.sampling == "mixed" and rng.random() < 0.5)
    fields |= {"temperature": 1.0, "seed": seed_of(prompt)} if drawn else {"temperature": 0.0}
    fields |= PENALTIES if scenario.penalized else {}
    # Growers that are to meet wait for a grammar both, or neither does.
    formed = scenario.formed == "all" or (scenario.formed == "some" and prompt % 2 == 1 and not longest)
    fields |= {"structured_outputs": FORM} if formed else {}
    expected = model.expected(penalized=scenario.penalized, formed=formed)[prompt, 0 if drawn else None]
    return SamplingParams(**fields, **_ending(scenario, expected, rng, longest))


def _ending(scenario: Scenario, expected: Expected, rng: random.Random, longest: bool) -> dict:
    """Return what ends the answer before its last token: nothing, a token or a text that comes in it; growers must grow."""
    if scenario.ending == "length" or longest:
        return {"ignore_eos": True}
    token = rng.choice(expected.tokens[:LONGEST_ANSWER])
    stop = {"stop_token_ids": (token,)} if scenario.ending == "token" else {"stop": (words([token]),)}
    return {"include_stop_str_in_output": True, **stop}


def complaints(job: Job, answer: Answer, model: TinyModel) -> tuple[list[str], int]:
    """Return what is wrong with an answer, and the number of its choices that end differently after a tie."""
    wrong: list[str] = []
    num_ties = 0
    if len(answer.choices) != job.params.n:
        return [f"prompt {job.prompt}: {len(answer.choices)} choices instead of {job.params.n}"], 0
    if answer.prompt_logprobs is not None:
        want = model.prompt_logprobs[job.prompt]
        if len(want) != len(answer.prompt_logprobs):
            wrong.append(f"prompt {job.prompt}: {len(answer.prompt_logprobs)} log-probabilities of {len(want)} tokens")
        if max((abs(a - b) for a, b in zip(want, answer.prompt_logprobs, strict=False)), default=0.0) > 1e-3:
            wrong.append(f"prompt {job.prompt}: log-probabilities {answer.prompt_logprobs} instead of {want}")
    for index, choice in enumerate(answer.choices):
        formed = job.params.structured_outputs is not None
        answers = model.expected(penalized=job.params.penalized, formed=formed)
        expected = answers[job.prompt, None if job.params.greedy else index]
        problem, tie = _compare(job.params, choice, expected)
        num_ties += tie
        if problem:
            wrong.append(f"prompt {job.prompt}, choice {index}: {problem}")
    return wrong, num_ties


def _compare(params: SamplingParams, choice: Choice, expected: Expected) -> tuple[str, bool]:
    """Return what is wrong, "" if nothing is, and whether the choice went its own way after a tie."""
    want, reason = _cut(params, expected.tokens)
    certain = min(expected.num_certain, len(want))
    if choice.text.rstrip() != words(choice.ids):
        return f"the text {choice.text!r} is not that of the tokens {choice.ids}", False
    if choice.ids[:certain] != want[:certain]:
        first = next((i for i, pair in enumerate(zip(choice.ids, want, strict=False)) if pair[0] != pair[1]), None)
        return f"from token {first} on {choice.ids} instead of {want} ({certain} of them certain)", False
    if (params.logprobs is None) != (choice.logprobs is None):
        return "log-probabilities are there or not, against the request", False
    if choice.logprobs is not None:
        if len(choice.logprobs) != len(choice.ids):
            return f"{len(choice.logprobs)} log-probabilities of {len(choice.ids)} tokens", False
        differences = [abs(a - b) for a, b in zip(choice.logprobs[:certain], expected.logprobs, strict=False)]
        if max(differences, default=0.0) > 1e-3:
            return f"log-probabilities differ by up to {max(differences):.2g}", False
    if certain < len(want) and choice.ids != want:
        return "", True
    if (choice.ids, choice.finish_reason) != (want, reason):
        return f"{choice.ids} ({choice.finish_reason}) instead of {want} ({reason})", False
    return "", False


def _cut(params: SamplingParams, tokens: list[int]) -> tuple[list[int], str]:
    """Return the tokens up to the first that ends the answer, and why it ends."""
    stops = {*params.stop_token_ids, *([] if params.ignore_eos else [EOS])}
    assert params.max_tokens is not None
    for position, token in enumerate(tokens[: params.max_tokens]):
        if token in stops or words([token]) in params.stop:
            return tokens[: position + 1], "stop"
    return tokens[: params.max_tokens], "length"
