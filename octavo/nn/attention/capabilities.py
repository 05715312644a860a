"""What an attention backend can do, what a layer needs, and why the one may not do for the other."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.base.facts import DeviceFacts

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
