"""An engine without a model: every choice repeats its prompt, one token a step. Torch-free, so it starts at once."""

from __future__ import annotations

import os
import time

import msgspec
import numpy as np

from octavo.engine.process import RunningEngine
from octavo.protocol.arrays import int32, int64
from octavo.protocol.control import Ack, Control
from octavo.protocol.output import EngineStats, Finish, Ready, Start, TokenDelta
from octavo.protocol.request import Abort, FinishChoice, FrontMessage, Request
from octavo.protocol.step import TokenLogprobs

FACTORY = "tests.engine_process.fake_core:build"


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """step_seconds: a step takes this long. fail: raise a ConfigError while loading. crash_at: die with this step."""

    step_seconds: float = 0.0
    load_seconds: float = 0.0
    fail: str = ""
    crash_at: int = -1
    exit_at: int = -1
    tokens_per_step: int = 1
    max_running: int = 1000


class FakeCore:
    """See the module. messages: everything that was handled, in order."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._requests: dict[int, Request] = {}
        self._waiting: list[int] = []
        self._made: dict[tuple[int, int], int] = {}
        self._news: dict[str, list] = {"starts": [], "finishes": [], "acks": []}
        self._changed = False
        self._num_steps = 0
        self.messages: list[FrontMessage] = []

    @property
    def busy(self) -> bool:
        return bool(self._made or self._waiting or self._changed)

    def handle(self, message: FrontMessage) -> None:
        self.messages.append(message)
        self._changed = True
        match message:
            case Request():
                if len(message.tokens) > 900:
                    for choice in range(message.sampling.n):
                        end = Finish(
                            key=message.key, choice=choice, num_tokens=0, reason="error", message="too many pages"
                        )
                        self._news["finishes"].append(end)
                    return
                self._requests[message.key] = message
                self._waiting.append(message.key)
            case Abort():
                for key in message.keys.tolist():
                    self._requests.pop(key, None)
                    self._waiting = [other for other in self._waiting if other != key]
                    self._made = {slot: made for slot, made in self._made.items() if slot[0] != key}
            case FinishChoice():
                self._made.pop((message.key, message.choice), None)
            case Control():
                self._news["acks"].append(Ack(ticket=message.ticket, ok=not self._made, message="busy"))

    def stats(self) -> EngineStats:
        return EngineStats(
            num_running=len(self._made), num_waiting=len(self._waiting), num_steps=self._num_steps, num_pages=40
        )

    def step(self) -> TokenDelta | None:
        if not self.busy:
            return None
        if self._options.step_seconds:
            time.sleep(self._options.step_seconds)
        self._num_steps += 1
        if self._num_steps == self._options.crash_at:
            raise RuntimeError("the fake worker broke")
        if self._num_steps == self._options.exit_at:
            os._exit(3)
        self._start()
        rows, ids = [], []
        for (key, choice), made in list(self._made.items()):
            request = self._requests[key]
            new = self._tokens(request, choice, made)
            rows.append((key, choice, made, len(new)))
            ids += new
        delta = self._delta(rows, ids)
        self._news = {"starts": [], "finishes": [], "acks": []}
        self._changed = False
        return delta

    def _start(self) -> None:
        while self._waiting and len(self._made) < self._options.max_running:
            key = self._waiting.pop(0)
            for choice in range(self._requests[key].sampling.n):
                self._made[key, choice] = 0
                self._news["starts"].append(Start(key=key, choice=choice, num_cached=7, time=time.time()))

    def _tokens(self, request: Request, choice: int, made: int) -> list[int]:
        new: list[int] = []
        for _ in range(self._options.tokens_per_step):
            token = int(request.tokens[(made + len(new) + choice) % len(request.tokens)])
            new.append(token)
            stop = token in request.stop_ids and made + len(new) > request.sampling.min_tokens
            if stop or made + len(new) == request.max_tokens:
                end = Finish(
                    key=request.key,
                    choice=choice,
                    num_tokens=made + len(new),
                    reason="stop" if stop else "length",
                    stop_id=token if stop else None,
                )
                self._news["finishes"].append(end)
                del self._made[request.key, choice]
                return new
        self._made[request.key, choice] = made + len(new)
        return new

    def _delta(self, rows: list[tuple[int, int, int, int]], ids: list[int]) -> TokenDelta:
        count = len(ids)
        wanted = [
            self._requests[key].sampling.logprobs is not None for key, _, _, number in rows for _ in range(number)
        ]
        logprobs = TokenLogprobs(
            wanted=np.array(wanted, np.bool_),
            chosen=np.full(count, -0.5, np.float32),
            ranks=np.full(count, 2, np.int32),
            top_ids=np.array([[65, token, -1] for token in ids], np.int32).reshape(count, 3),
            top=np.array([[-0.25, -0.5, 0.0]] * count, np.float32).reshape(count, 3),
        )
        return TokenDelta(
            keys=int64([row[0] for row in rows]),
            choices=int32([row[1] for row in rows]),
            firsts=int32([row[2] for row in rows]),
            offsets=int32([0, *np.cumsum([row[3] for row in rows], dtype=np.int32).tolist()]),
            ids=int32(ids),
            logprobs=logprobs if any(wanted) else None,
            starts=tuple(self._news["starts"]),
            finishes=tuple(self._news["finishes"]),
            acks=tuple(self._news["acks"]),
            stats=self.stats(),
        )


def build(options: bytes) -> RunningEngine:
    """The factory that engine processes of tests call."""
    from octavo.base.errors import ConfigError

    read = msgspec.msgpack.decode(options, type=Options)
    time.sleep(read.load_seconds)
    if read.fail:
        raise ConfigError(read.fail, field="max_model_len")
    ready = Ready(max_model_len=1024, num_pages=64, page_bytes=4096)
    return RunningEngine(core=FakeCore(read), ready=ready, shutdown=lambda: None)
