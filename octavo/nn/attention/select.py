"""The one table of attention backends and the one function that chooses, from facts alone, once at start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.base.errors import ConfigError
from octavo.base.facts import DeviceFacts
from octavo.base.naming import unknown_name
from octavo.nn.attention.capabilities import AttentionNeeds, Capabilities

# In order of preference; the last fits everywhere.
BACKENDS = (
    Capabilities(
        name="torch",
        path="octavo.nn.attention.paged:PagedBackend",
        features=frozenset(("window", "softcap", "alibi", "sinks")),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The backend that was chosen, and in words why."""

    backend: Capabilities
    reason: str


def select(
    needs: AttentionNeeds,
    facts: DeviceFacts,
    forced: str | None = None,
    backends: Sequence[Capabilities] = BACKENDS,
) -> Selection:
    """Return the first backend that fits; raises ConfigError if the forced one is unknown or does not."""
    what = f"attention of heads of {needs.head_dim}" + "".join(f", {name}" for name in sorted(needs.features))
    if forced is not None:
        named = {backend.name: backend for backend in backends}
        if forced not in named:
            raise ConfigError(unknown_name("attention backend", forced, named), field="attention")
        refusal = named[forced].refusal(needs, facts)
        if refusal is not None:
            raise ConfigError(f"attention backend {forced!r} was asked for but {refusal}", field="attention")
        return Selection(backend=named[forced], reason=f"{what}: {forced}, asked for")
    refusals: list[str] = []
    for backend in backends:
        refusal = backend.refusal(needs, facts)
        if refusal is None:
            why = "; ".join(refusals) or "the first that fits"
            return Selection(backend=backend, reason=f"{what}: {backend.name}, {why}")
        refusals.append(f"{backend.name} {refusal}")
    raise ConfigError(f"no backend for {what}: {'; '.join(refusals)}", field="attention")
