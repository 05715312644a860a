"""Control messages: they travel in the plan stream, and every rank acknowledges each one. There is no second channel."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

When = Literal["at_once", "at_plan", "after_drain"]


class ResetPrefixCache(msgspec.Struct, frozen=True, kw_only=True, tag="reset_prefix_cache"):
    """Forget every cached block. Running requests keep their pages; nobody can find them any more."""


class Barrier(msgspec.Struct, frozen=True, kw_only=True, tag="barrier"):
    """Do nothing, in order: its acknowledgement proves that every rank has reached this point of the stream."""


class Call(msgspec.Struct, frozen=True, kw_only=True, tag="call"):
    """Run a named method of the worker on every rank (profiling, debugging). `arguments` is msgpack."""

    method: str
    arguments: bytes = b"\x90"


class Apply(msgspec.Struct, frozen=True, kw_only=True, tag="apply"):
    """Call a function with the worker. Functions cross no process: for workers in the engine's own only."""

    function: Any


Command = ResetPrefixCache | Barrier | Call | Apply


class Control(msgspec.Struct, frozen=True, kw_only=True, tag="control"):
    """One command and when it takes effect.

    at_once: with the next plan. at_plan: with plan number `plan` or the first later one, or when the engine is idle.
    after_drain: with the first plan after everything admitted has finished; nothing new is admitted meanwhile.
    """

    ticket: int
    command: Command
    when: When = "at_once"
    plan: int = 0


class Ack(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank, or the engine, says of a control message. `value` is msgpack; of several ranks, a list of theirs."""

    ticket: int
    ok: bool = True
    message: str = ""
    value: bytes = b"\xc0"
