"""What attention backends can do, what a layer needs, the table of backends, and the choice: from facts alone, once at start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.base.errors import ConfigError
from octavo.base.facts import DeviceFacts
from octavo.base.naming import unknown_name

# Tokens a block that pages may have.
BLOCKS = (16, 32, 64, 128)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionNeeds:
    """What a layer asks for. window: tokens it sees, None for all. softcap, alibi (slopes), sinks: see `Scoring`."""

    dtype: str
    head_dim: int
    window: int | None = None
    softcap: float | None = None
    alibi: bool = False
    sinks: bool = False

    @property
    def features(self) -> frozenset[str]:
        """The features that a backend must have."""
        asked = {"window": self.window is not None, "softcap": self.softcap is not None}
        asked |= {"alibi": self.alibi, "sinks": self.sinks}
        return frozenset(name for name, wanted in asked.items() if wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """One backend; an empty tuple means any. blocks: tokens a block that it takes. path: `module:Class` of the backend."""

    name: str
    path: str
    blocks: tuple[int, ...] = BLOCKS
    kinds: tuple[str, ...] = ()
    archs: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    head_dims: tuple[int, ...] = ()
    features: frozenset[str] = frozenset()

    def refusal(self, needs: AttentionNeeds, facts: DeviceFacts) -> str | None:
        """Return why the backend does not fit, or None if it does."""
        if self.kinds and facts.kind not in self.kinds:
            return f"needs a device of {' or '.join(self.kinds)}, not {facts.kind}"
        if self.archs and facts.arch not in self.archs:
            return f"needs {' or '.join(self.archs)}, not {facts.arch}"
        if self.dtypes and needs.dtype not in self.dtypes:
            return f"needs {' or '.join(self.dtypes)}, not {needs.dtype}"
        if self.head_dims and needs.head_dim not in self.head_dims:
            return f"takes heads of {', '.join(map(str, self.head_dims))}, not {needs.head_dim}"
        missing = sorted(needs.features - self.features)
        return f"has no {', '.join(missing)}" if missing else None


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
