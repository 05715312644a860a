"""Drafts under a grammar: the worker proposes tokens, some of them right, and the answers are those without drafts."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec
import pytest

from octavo.constrain.grammar import Form, whole
from octavo.constrain.matcher import Grammars, Vocabulary
from octavo.protocol.request import Request
from tests.engine.fake_worker import VOCABULARY, Slot, next_token
from tests.engine.harness import GEOMETRIES, Engine, request, with_live

# Token ids 0, 1, 2 ... are the letters A, B, C ...; the last is none and ends texts, as does another where a request says so.
EOS, OTHER_END = VOCABULARY - 1, 33
# Pairs of a token below 10 and one below 20; then the first kind has one that nothing can follow, the second may end.
CLOSED, OPEN = "([A-J][K-T]){2,6}U", "([A-J][K-T])*"


def grammars() -> Grammars:
    letters = [bytes([ord("A") + index]) for index in range(EOS)]
    return Grammars(
        lambda: Vocabulary(
            tokens=[*letters, b"</s>"], special_token_ids=[EOS], ends=[EOS], num_ids=VOCABULARY, eos_token_id=EOS
        )
    )


def allowed(regex: str, output: list[int], stop_ids: tuple[int, ...]) -> set[int]:
    """Return what may follow, worked out without a grammar; nothing if that is the end."""
    if 20 in output or not regex:
        return set() if regex else set(range(VOCABULARY))
    if len(output) % 2:
        return set(range(10, 20))
    if regex == OPEN:
        return {*range(10), *stop_ids}
    return {*(range(10) if len(output) < 12 else ()), *([20] if len(output) >= 4 else [])}


def expected(asked: Request, regex: str, choice: int) -> tuple[list[int], str]:
    """Return what a choice must answer."""
    prompt, output = asked.tokens.tolist(), list[int]()
    while len(output) < asked.max_tokens:
        may = allowed(regex, output, asked.stop_ids)
        if not may:
            return output, "stop"
        output.append(next_token(prompt + output, asked.seed, choice, may))
        if output[-1] in asked.stop_ids:
            return output, "stop"
    return output, "length"


def drafter(asked: dict[int, tuple[Request, str]], most: int, rng: random.Random) -> Callable[[Slot], list[int]]:
    """Return what proposes up to `most` tokens: right ones, others that may come, and any; also behind the end."""

    def propose(slot: Slot) -> list[int]:
        given, regex = asked[slot.key]
        history = list(slot.tokens)
        for _ in range(rng.randint(0, most)):
            may = allowed(regex, history[slot.num_prompt :], given.stop_ids) or set(range(VOCABULARY))
            chance = rng.random()
            right = next_token(history, slot.seed, slot.choice, may)
            history.append(right if chance < 0.75 else rng.choice(sorted(may) if chance < 0.9 else range(VOCABULARY)))
        return history[len(slot.tokens) :]

    return propose


def load(rng: random.Random) -> dict[int, tuple[Request, str]]:
    """Return requests with and without forms, by key; their prompts begin alike."""
    stem = [rng.randrange(VOCABULARY) for _ in range(12)]
    found = {}
    for key in range(8):
        regex = rng.choice((CLOSED, OPEN, OPEN, ""))
        prompt = [*stem[: rng.randint(1, 12)], *(rng.randrange(VOCABULARY) for _ in range(rng.randint(0, 20)))]
        stops = rng.choice(((), (EOS,), (EOS, OTHER_END), (5, EOS)))
        one = request(key, prompt, max_tokens=rng.randint(1, 24), stops=stops, n=rng.choice((1, 1, 3)))
        grammar = whole(Form(f"/{regex}/")) if regex else ""
        found[key] = msgspec.structs.replace(one, grammar=grammar), regex
    return found


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("name", ["full", "full and sliding", "full and states"])
def test_drafts_change_no_answer_that_has_a_form(name: str, depth: int) -> None:
    accepted = rejected = preempted = 0
    for seed in range(6):
        for tokens_per_step in (1, 2, 5):
            rng = random.Random(seed)
            asked = load(rng)
            geometry = with_live(GEOMETRIES[name], tokens_per_step)
            engine = Engine(
                geometry,
                num_pages=geometry.pages_of(60) + 4,
                depth=depth,
                tokens_per_step=tokens_per_step,
                seed=seed,
                grammars=grammars(),
                drafter=drafter(asked, tokens_per_step, rng) if tokens_per_step > 1 else None,
            )
            for one, _ in asked.values():
                engine.core.handle(one)
                engine.step()
            engine.drain()
            for key, (one, regex) in asked.items():
                for choice in range(one.sampling.n):
                    tokens, reason = expected(one, regex, choice)
                    finish = engine.finishes[key, choice]
                    assert (engine.outputs.get((key, choice), []), finish.reason) == (tokens, reason), finish
                    assert finish.num_tokens == len(tokens)
                    stop = tokens[-1] if tokens and tokens[-1] in one.stop_ids else None
                    assert finish.stop_id == stop
            accepted, rejected = accepted + engine.worker.num_accepted, rejected + engine.worker.num_rejected
            preempted += engine.core.stats().num_preemptions
    assert min(accepted, rejected) > 200
    assert preempted > 0


def test_what_a_row_yields_behind_the_end_of_its_form_counts_for_nothing() -> None:
    one = msgspec.structs.replace(request(1, [1, 2, 3], max_tokens=20), grammar=whole(Form(f"/{CLOSED}/")))
    tokens, reason = expected(one, CLOSED, 0)
    # All that comes, and then what can never come.
    propose = lambda slot: [*tokens, *(7, 8) * 10][len(slot.tokens) - 3 :][:19]  # noqa: E731
    engine = Engine(
        GEOMETRIES["full"], num_pages=40, budget=32, tokens_per_step=20, grammars=grammars(), drafter=propose
    )
    engine.core.handle(one)
    engine.drain()
    assert (engine.outputs[1, 0], engine.finishes[1, 0].reason, reason) == (tokens, "stop", "stop")
    assert engine.finishes[1, 0].num_tokens == len(tokens) == engine.core.stats().generated_tokens
    assert engine.core.stats().num_steps <= 3
