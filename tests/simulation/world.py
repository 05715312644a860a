"""Two fronts, the wire and an engine in one thread: a seed decides what happens next, so that every run can be had again.

Core, scheduler, codec and streams are the real ones; the worker is the one that checks every page. Messages of one front keep
their order; how those of several fall between each other, how long any is under way, and when a worker dies is the seed's.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from octavo.base.errors import EngineDeadError
from octavo.engine.streams import Inbox, Streams
from octavo.protocol.arrays import int32, int64
from octavo.protocol.codec import Codec
from octavo.protocol.control import Barrier, Control, ResetPrefixCache
from octavo.protocol.output import EngineMessage, Failure, TokenDelta
from octavo.protocol.pooling import PoolingParams
from octavo.protocol.request import Abort, FinishChoice, FrontMessage, Request
from tests.engine.fake_worker import VOCABULARY, encoder_input, vector_of
from tests.engine.harness import GEOMETRIES, Cache, Engine, expected, never_fits, request, with_live

_NUM_FRONTS, _MOST_REQUESTS = 2, 24
# How often each thing happens, to the others.
_WEIGHTS = {
    "ask": 6,
    "abort": 2,
    "finish": 2,
    "control": 1,
    "arrive": 12,
    "step": 14,
    "read": 10,
    "fail_row": 1,
    "crash": 0.15,
}
_TO_ENGINE, _TO_FRONT = Codec[FrontMessage](FrontMessage), Codec[EngineMessage](EngineMessage)


@dataclass(slots=True, kw_only=True)
class Asked:
    """A request as its front knows it. cut: choices that the front ended, and at which token. fate: how the request ended."""

    request: Request
    inbox: Inbox
    outputs: dict[int, list[int]] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    cut: dict[int, int] = field(default_factory=dict)
    vector: list[float] | None = None
    fate: str = ""

    def end(self, fate: str) -> None:
        """Note how it ended."""
        assert not self.fate, f"a request ended twice: {self.fate}, then {fate}"
        self.fate = fate


class World:
    """See the module. `run` raises AssertionError when something is not as it must be; `story` tells what happened."""

    def __init__(self, seed: int) -> None:
        self._chance = chance = random.Random(seed)
        tokens_per_step = chance.randint(1, 3)
        self._shape = with_live(GEOMETRIES[chance.choice(sorted(GEOMETRIES))], tokens_per_step)
        step = math.lcm(*(group.block for group in self._shape.groups))
        self._options: dict[str, Any] = {
            "num_pages": chance.randint(8, 60),
            "depth": chance.choice((1, 2, 4)),
            "tokens_per_step": tokens_per_step,
            "budget": chance.choice((1, 3, 8, 64)),
            "num_slots": chance.randint(1, 6),
            "policy": chance.choice(("fcfs", "priority")),
            "reuse": chance.random() < 0.7,
            "source": Cache(step) if chance.random() < 0.3 else None,
            "seed": seed,
        }
        shown = {name: value for name, value in self._options.items() if name != "source"}
        self.story = [f"seed {seed}: {shown}, {len(self._shape.groups)} groups"]
        self.streams = [Streams(front) for front in range(_NUM_FRONTS)]
        self.asked: dict[int, Asked] = {}
        self.num_crashes = self.num_preemptions = self.num_tokens = 0
        self._tickets: dict[int, str] = {}
        self._inward = [deque[bytes]() for _ in range(_NUM_FRONTS)]
        self._outward = [deque[bytes]() for _ in range(_NUM_FRONTS)]
        self._engine = self._start()

    def run(self, num_events: int = 150) -> None:
        """Let things happen, then let everything come to its end, and check what everybody got."""
        kinds, weights = list(_WEIGHTS), list(_WEIGHTS.values())
        for kind in self._chance.choices(kinds, weights, k=num_events):
            self._happen(kind)
        for _ in range(20_000):
            if not (self._engine.core.busy or any(self._inward) or any(self._outward)):
                break
            self._happen(self._chance.choice(("arrive", "step", "read")))
        self._engine.drain()
        assert not any(map(len, self.streams)), "a request was never ended"
        assert set(self._tickets.values()) <= {"done", "lost"}, "a control message was not answered"
        for one in self.asked.values():
            self._check(one)
        self.num_preemptions += self._engine.core.stats().num_preemptions

    def _start(self) -> Engine:
        return Engine(self._shape, **self._options)

    def _happen(self, kind: str) -> None:
        front = self._chance.randrange(_NUM_FRONTS)
        getattr(self, f"_{kind}")(front)

    # What fronts do.

    def _open(self, front: int) -> list[Asked]:
        return [one for one in self.asked.values() if not one.fate and one.inbox.key in self.streams[front]._open]

    def _send(self, front: int, message: FrontMessage) -> None:
        said = (
            f"{message.key}: {message.sampling.n} of {message.max_tokens}" if isinstance(message, Request) else message
        )
        self.story.append(f"front {front} sends {said}")
        self._inward[front].append(_TO_ENGINE.encode(message))

    def _ask(self, front: int) -> None:
        chance, streams = self._chance, self.streams[front]
        if len(self.asked) == _MOST_REQUESTS:
            return
        key = streams.new_key()
        tail = [chance.randrange(VOCABULARY) for _ in range(chance.randint(1, 6))]
        options: dict[str, Any] = {"priority": chance.randint(-1, 1), "max_tokens": chance.randint(1, 20)}
        if chance.random() < 0.12:
            options |= {"max_tokens": 0, "pooling": PoolingParams()}
        else:
            stops = tuple(chance.sample(range(VOCABULARY), chance.choice((0, 0, 3, 10))))
            options |= {"n": chance.choice((1, 1, 1, 2, 3)), "stops": stops, "min_tokens": chance.randint(0, 4)}
            options |= {"cache_salt": chance.choice(("", "", "salt"))}
        prompt = ([chance.randrange(3)] * 40)[: chance.randint(0, 30)] + tail
        if self._shape.has_encoder:
            options["encoder_tokens"] = int32(encoder_input(key, 1 + len(prompt) % 7))
        one = request(key, prompt, **options)
        self.asked[key] = Asked(request=one, inbox=streams.open(one))
        self._send(front, one)

    def _abort(self, front: int) -> None:
        for one in self._chance.sample(self._open(front), min(1, len(self._open(front)))):
            self.streams[front].close(one.inbox.key)
            one.end("aborted")
            self._send(front, Abort(keys=int64([one.inbox.key])))

    def _finish(self, front: int) -> None:
        """End a choice where a stop string was found: somewhere in what has come of it."""
        running = [
            (one, choice)
            for one in self._open(front)
            for choice in one.outputs
            if one.request.pooling is None and choice not in one.reasons and choice not in one.cut
        ]
        for one, choice in self._chance.sample(running, min(1, len(running))):
            one.cut[choice] = self._chance.randint(0, len(one.outputs[choice]))
            self._send(front, FinishChoice(key=one.inbox.key, choice=choice, num_tokens=one.cut[choice]))
            self._end_if_all_have(front, one)

    def _control(self, front: int) -> None:
        ticket = self.streams[front].new_key()
        command = Barrier() if self._chance.random() < 0.5 else ResetPrefixCache()
        when = self._chance.choice(("at_once", "at_plan", "after_drain")) if isinstance(command, Barrier) else "at_once"
        self._tickets[ticket] = "sent"
        self._send(front, Control(ticket=ticket, command=command, when=when, plan=5))

    def _read(self, front: int) -> None:
        for _ in range(min(len(self._outward[front]), self._chance.randint(1, 4))):
            match _TO_FRONT.decode(self._outward[front].popleft()):
                case TokenDelta() as delta:
                    self.streams[front].deliver(delta)
                    for ack in delta.acks:
                        if ack.ticket >> 48 == front:
                            assert self._tickets[ack.ticket] == "sent", "a control message was answered twice"
                            self._tickets[ack.ticket] = "done"
                case Failure(message=message):
                    self.streams[front].fail(EngineDeadError(message))
                    self._tickets |= {
                        ticket: "lost"
                        for ticket, state in self._tickets.items()
                        if state == "sent" and ticket >> 48 == front
                    }
                case other:
                    raise AssertionError(f"nobody sends {other}")
        for one in self._open(front):
            self._take(front, one)

    def _take(self, front: int, one: Asked) -> None:
        for choice, news in one.inbox.take().items():
            output = one.outputs.setdefault(choice, [])
            assert not news.ids or news.first == len(output), "a token is missing, doubled or out of order"
            assert not news.ids or choice not in one.reasons, "a token came after the end"
            output += news.ids
            self.num_tokens += len(news.ids)
            if news.vector is not None:
                assert one.vector is None
                one.vector = news.vector.tolist()
            if news.finish is not None:
                assert choice not in one.reasons, "a choice ended twice"
                one.reasons[choice] = news.finish.reason
                assert choice in one.cut or news.finish.num_tokens == len(output)
        if one.inbox.error is not None:
            self.streams[front].close(one.inbox.key)
            one.end("lost")
        else:
            self._end_if_all_have(front, one)

    def _end_if_all_have(self, front: int, one: Asked) -> None:
        if len({*one.reasons, *one.cut}) == one.request.sampling.n:
            self.streams[front].close(one.inbox.key)
            one.end("answered")

    # What the engine does.

    def _arrive(self, front: int) -> None:
        for _ in range(min(len(self._inward[front]), self._chance.randint(1, 4))):
            self._engine.core.handle(_TO_ENGINE.decode(self._inward[front].popleft()))
            self._engine.check_accounts()

    def _step(self, _front: int) -> None:
        engine = self._engine
        told: list[TokenDelta] = []
        engine.take = _both(Engine.take.__get__(engine), told.append)
        try:
            engine.step()
        except EngineDeadError as error:
            self.story.append(f"the engine dies: {error}")
            self._tell(Failure(kind="EngineDeadError", message=str(error)))
            self.num_crashes += 1
            self._replace()
            return
        for delta in told:
            self.story.append(f"plan {engine.scheduler.state.num_in_flight} in flight; told {delta.finishes}")
            self._tell(delta)

    def _tell(self, message: EngineMessage) -> None:
        for outward in self._outward:
            outward.append(_TO_FRONT.encode(message))

    def _replace(self) -> None:
        """Start another engine: what was on its way to the dead one is lost, and its fronts know so before they ask again."""
        self.num_preemptions += self._engine.core.stats().num_preemptions
        self._engine = self._start()
        for front in range(_NUM_FRONTS):
            self._inward[front].clear()
            while self._outward[front]:
                self._read(front)

    def _fail_row(self, _front: int) -> None:
        """Let the numbers of one request break."""
        running = [one for one in self.asked.values() if not one.fate and one.request.pooling is None]
        for one in self._chance.sample(running, min(1, len(running))):
            self.story.append(f"the numbers of {one.inbox.key} break")
            self._engine.worker.failing_keys.add(one.inbox.key)

    def _crash(self, _front: int) -> None:
        """Let the worker be gone when it is asked next."""
        where = self._chance.choice(("submit", "collect"))
        self.story.append(f"the worker dies at its next {where}")

        def gone(*_args: Any, **_named: Any) -> Any:
            raise EngineDeadError("the worker is gone")

        setattr(self._engine.worker, where, gone)

    # What must have come of it.

    def _check(self, one: Asked) -> None:
        asked, key = one.request, one.inbox.key
        assert one.fate, f"request {key} never ended"
        if asked.pooling is not None:
            assert one.vector in (None, vector_of(asked.tokens.tolist()))
            assert one.fate != "answered" or (one.vector is None) == never_fits(self._engine, asked)
            return
        for choice, output in one.outputs.items():
            tokens, reason = expected(asked, choice)
            assert output == tokens[: len(output)], f"request {key}, choice {choice}: {output} instead of {tokens}"
            ended = one.reasons.get(choice)
            if ended is None or choice in one.cut:
                continue
            if ended == "error":
                assert never_fits(self._engine, asked) or self._engine_broke(key)
            else:
                assert (ended, output) == (reason, tokens)

    def _engine_broke(self, key: int) -> bool:
        return any(line == f"the numbers of {key} break" for line in self.story)


def _both(first: Callable[[TokenDelta], None], second: Callable[[TokenDelta], None]) -> Callable[[TokenDelta], None]:
    def call(delta: TokenDelta) -> None:
        first(delta)
        second(delta)

    return call
