"""The protocol that a group of workers fulfils. The engine knows nothing else of devices."""

from __future__ import annotations

from typing import Protocol

import msgspec

from octavo.engine.kvcache.geometry import Geometry
from octavo.protocol.kept import KeptLayer
from octavo.protocol.step import Masks, StepPlan, StepResult


class WorkerReport(msgspec.Struct, frozen=True, kw_only=True):
    """What workers know once weights are loaded. free_bytes: memory that the page pool of a rank may take.

    generates: whether the model has a head; if not, it gives vectors only. ranks: the reports that were merged into this
    one, if there are several ranks; its layers are then those of all stages.
    """

    layers: tuple[KeptLayer, ...]
    free_bytes: int
    decisions: tuple[str, ...] = ()
    generates: bool = True
    ranks: tuple[WorkerReport, ...] = ()

    def num_pages(self, geometry: Geometry) -> int:
        """Return the number of pages for which every rank has the memory."""
        if not geometry.groups:
            return 1
        return min(rank.free_bytes // rank.part(geometry).page_bytes for rank in self.ranks or (self,))

    def part(self, geometry: Geometry) -> Geometry:
        """Return how the pool of a rank with these layers is cut."""
        return geometry.part({layer.layer for layer in self.layers})


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

    def mask(self, masks: Masks) -> None:
        """Give the oldest plan what its `masked` rows wait for; nothing is waited for."""
        ...

    def collect(self, timeout: float | None = None) -> StepResult | None:
        """Return the oldest plan's result, waiting up to `timeout` seconds (None: for ever); None when time is up."""
        ...

    def check(self) -> None:
        """Return if every rank is alive: for times when no plan is in flight."""
        ...

    def shutdown(self) -> None:
        """Free everything; idempotent."""
        ...
