"""The protocol that a group of workers fulfils. The engine knows nothing else of devices."""

from __future__ import annotations

from typing import Protocol

import msgspec

from octavo.engine.kvcache.geometry import Geometry
from octavo.protocol.kept import KeptLayer
from octavo.protocol.step import StepPlan, StepResult


class WorkerReport(msgspec.Struct, frozen=True, kw_only=True):
    """What workers know once weights are loaded. free_bytes: memory that the page pool may take."""

    layers: tuple[KeptLayer, ...]
    free_bytes: int
    decisions: tuple[str, ...] = ()


class Executor(Protocol):
    """Runs plans in order on every rank. A dead rank shows as an EngineDeadError from any method."""

    def load(self) -> WorkerReport:
        """Load the model on every rank and report what its layers keep."""
        ...

    def allocate(self, geometry: Geometry, num_pages: int) -> None:
        """Make the page pool and the slots; after this plans may be submitted."""
        ...

    def submit(self, plan: StepPlan) -> None:
        """Queue a plan and return at once."""
        ...

    def collect(self, timeout: float | None = None) -> StepResult | None:
        """Return the oldest plan's result, waiting up to `timeout` seconds (None: for ever); None when time is up."""
        ...

    def shutdown(self) -> None:
        """Free everything; idempotent."""
        ...
