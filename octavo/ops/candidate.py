"""Candidates for an op, and the one function that chooses among them, from facts alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from octavo.base.errors import ConfigError
from octavo.base.facts import DeviceFacts
from octavo.base.naming import unknown_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One implementation of an op and what it can do; an empty tuple means any.

    path: `module:function`, imported once it is chosen. check: what the other fields cannot say; given facts and dtype it
    returns None, or the reason why it does not fit. recordable: what it launches follows from shapes alone, never from values
    that it reads on the host, so that a graph may record it.
    """

    name: str
    path: str
    kinds: tuple[str, ...] = ()
    archs: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    check: Callable[[DeviceFacts, str], str | None] | None = None
    recordable: bool = True

    def refusal(self, facts: DeviceFacts, dtype: str) -> str | None:
        """Return why it cannot compute in `dtype` on this device, or None if it can."""
        if self.kinds and facts.kind not in self.kinds:
            return f"needs a device of {' or '.join(self.kinds)}, not {facts.kind}"
        if self.archs and facts.arch not in self.archs:
            return f"needs {' or '.join(self.archs)}, not {facts.arch}"
        if self.dtypes and dtype not in self.dtypes:
            return f"needs {' or '.join(self.dtypes)}, not {dtype}"
        missing = [feature for feature in self.features if feature not in facts.features]
        if missing:
            return f"needs {', '.join(missing)}"
        return self.check(facts, dtype) if self.check is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """An op's name and its candidates in order of preference; the torch reference, which fits everywhere, is the last."""

    name: str
    candidates: tuple[Candidate, ...]


def choose(op: Op, facts: DeviceFacts, dtype: str, forced: str | None = None) -> tuple[Candidate, str]:
    """Return the first candidate that fits, and why; raises ConfigError if the forced one is unknown or does not."""
    refusals: list[str] = []
    if forced is not None:
        named = {candidate.name: candidate for candidate in op.candidates}
        if forced not in named:
            raise ConfigError(unknown_name(f"kernel for {op.name}", forced, named), field=op.name)
        refusal = named[forced].refusal(facts, dtype)
        if refusal is not None:
            raise ConfigError(f"kernel {forced!r} for {op.name} was asked for but {refusal}", field=op.name)
        return named[forced], f"{op.name} {forced}: asked for"
    for candidate in op.candidates:
        refusal = candidate.refusal(facts, dtype)
        if refusal is None:
            why = "; ".join(refusals) or "the first that fits"
            return candidate, f"{op.name} {candidate.name}: {why}"
        refusals.append(f"{candidate.name} {refusal}")
    raise AssertionError(f"the reference of {op.name} fits everywhere")
