"""Steps recorded as graphs: a few sizes, each replayed for every step that it has room for.

Decode steps have a graph by number of rows; mixed steps and small prefills one by numbers of tokens and rows. Greedy decode
steps of powers of two are recorded at start, largest first, so that every such step finds one, and drawn ones of fewer sizes;
other steps when they have come often, or when there is nothing else to do. A device that queues nothing computes while the host
waits: it records a step the second time it comes, and decode steps only, as a row or a token too many costs it more than what a
graph saves.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from octavo.base.logging import get_logger
from octavo.device.base import Device, Graph
from octavo.device.recording import UnrecordableError
from octavo.worker.batch import StepRows, StepShape
from octavo.worker.sampling.rows import Ending
from octavo.worker.step import StepOutputs, StepProgram

# Above, tokens that only fill up a step cost more than launching it does: of those, the steps are recorded that take the whole
# budget, or nearly, with room for so many rows.
MOST_TOKENS = 2048
# Rows and tokens of small prefills, whose kernels an engine that starts waits for.
FIRST_MIXED = ((8, 16), (8, 64))
_LEAST_TOKENS, _LEAST_ROWS, _FULL_ROWS = 16, 8, 256
# Rows of drawn decode steps that are recorded at start, beside the most: any such step finds room in one.
_DRAWN_SIZES = (1, 8, 64)
# So often a step comes before a running engine stops to record it.
_OFTEN, _OFTEN_UNQUEUED = 8, 2
# Rows of which a host keeps logits behind a recorded step: each size keeps its own.
_MOST_LOGITS = 16

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A step that was recorded, and where a replay leaves what it gives."""

    graph: Graph
    outputs: StepOutputs


# The shape of a step, and how it ends.
Wanted = tuple[StepShape, Ending]


class StepGraphs:
    """All graphs of a worker. most_bytes: what any of them may take; none is added to an engine that has less left.

    budget: tokens of the largest step.
    """

    def __init__(self, device: Device, program: StepProgram, most_bytes: int = 0, budget: int = 0) -> None:
        self._device = device
        self._most_bytes = most_bytes
        self._budget = budget
        self._program = program
        self._most_rows, self._draws = program.slots.void, program.draw is not None
        self._widths = tuple(table.shape[1] for table in program.slots.tables)
        self._queues = "queue" in device.facts.features
        self._sizes = row_sizes(self._most_rows, fine=not self._queues)
        self._recorded: dict[Wanted, Recorded] = {}
        self._missed = Counter[Wanted]()
        self._full = False

    def __len__(self) -> int:
        return len(self._recorded)

    def record_first(self) -> None:
        """Record what an engine starts with. The largest goes first: smaller ones then fit into its memory."""
        if not self._queues:
            return
        for size in reversed(first_sizes(self._most_rows)):
            self._record((self._decode(size), "greedy"))
            if self._draws and (size in _DRAWN_SIZES or size == self._most_rows):
                self._record((self._decode(size), "drawn"))

        for num_rows, num_tokens in FIRST_MIXED:
            self._program.run_void(self._mixed(num_tokens, min(num_rows, self._most_rows)), "greedy")

    def record_next(self) -> bool:
        """Record the step that came most often and found no graph of its size; return whether there was one."""
        found = self._missed.most_common(1)
        for wanted, _ in found:
            self._add(wanted)
        return bool(found)

    def find(self, rows: StepRows, ending: Ending) -> tuple[StepShape, Recorded | None] | None:
        """Return the shape that a step is to have, and its graph if there is one; None for a step larger than any graph's.

        A step without a graph takes the shape of one all the same: kernels are compiled for few shapes.
        """
        if ending == "drawn" and not self._draws:
            ending = "logits"
        if ending == "logits" and not self._queues and len(rows.slots) > _MOST_LOGITS:
            return None
        fitting: list[Wanted] = [(shape, ending) for shape in self._fitting(rows)]
        if not fitting:
            return None
        best = fitting[0]
        if best not in self._recorded and not self._full:
            self._missed[best] += 1
            if self._missed[best] >= (_OFTEN if self._queues else _OFTEN_UNQUEUED):
                self._add(best)
        shape, _ = wanted = next((wanted for wanted in fitting if wanted in self._recorded), best)
        return shape, self._recorded.get(wanted)

    def _fitting(self, rows: StepRows) -> list[StepShape]:
        """Return the shapes that have room for a step, the smallest first."""
        num_rows = len(rows.slots)
        if rows.decodes:
            fitting = [self._decode(size) for size in self._sizes if size >= num_rows]
            return [replace(shape, shared=True) for shape in fitting[:2]] + fitting if rows.shared else fitting
        if not self._queues:
            return []
        least, tokens = _LEAST_ROWS, _powers(_LEAST_TOKENS, 2, MOST_TOKENS)
        if MOST_TOKENS < rows.num_tokens >= self._budget - self._budget // 32:
            least, tokens = _FULL_ROWS, [self._budget]
        most = next(size for size in _powers(least, 4, self._most_rows) if size >= num_rows)
        # As many tokens as rows would be taken for one token a row.
        sizes = [size for size in tokens if size >= max(rows.num_tokens, most + 1)]
        fitting = [self._mixed(sizes[0], most)] if sizes else []
        return [replace(shape, shared=True) for shape in fitting] + fitting if rows.shared else fitting

    def _decode(self, size: int) -> StepShape:
        return StepShape(num_tokens=size, num_rows=size, decodes=True, widths=self._widths)

    def _mixed(self, num_tokens: int, num_rows: int) -> StepShape:
        return StepShape(num_tokens=num_tokens, num_rows=num_rows, decodes=False, widths=self._widths)

    def _add(self, wanted: Wanted) -> None:
        # Ranks record together or not at all: a step takes all of them.
        if self._program.mesh.any(self._device.free_memory() < self._most_bytes, self._device.torch_device):
            self._full = True
            self._missed.clear()
            _log.info("no more steps are recorded: less than %d MiB of memory are left", self._most_bytes >> 20)
        else:
            self._record(wanted)

    def _record(self, wanted: Wanted) -> None:
        self._missed.pop(wanted, None)
        # First without recording: kernels are compiled, and libraries make what they keep.
        self._program.run_void(*wanted)
        outputs = list[StepOutputs]()
        try:
            graph = self._device.capture(lambda: outputs.append(self._program.run(*wanted)))
        except UnrecordableError as error:
            self._full = True
            self._missed.clear()
            _log.info("steps are not recorded: %s", error)
            return
        self._recorded[wanted] = Recorded(graph=graph, outputs=outputs[0])


def row_sizes(most: int, *, fine: bool = False) -> tuple[int, ...]:
    """Return the numbers of rows for which decode steps are recorded: powers of two, half a power more, and the most.

    fine: every number up to 16, then every eighth.
    """
    if fine:
        return tuple(sorted({*range(1, min(most, 16) + 1), *range(24, most, 8), most}))
    sizes, size = {most}, 1
    while size < most:
        sizes.update(s for s in ((size, size * 3 // 2) if size >= 16 else (size,)) if s < most)
        size *= 2
    return tuple(sorted(sizes))


def first_sizes(most: int) -> tuple[int, ...]:
    """Return those that are recorded at start: powers of two, and the most."""
    return tuple(size for size in row_sizes(most) if size == most or size & (size - 1) == 0)


def _powers(least: int, factor: int, most: int) -> list[int]:
    """Return least, least * factor, ... and, behind the last that is smaller, most."""
    sizes = [min(least, most)]
    while sizes[-1] < most:
        sizes.append(min(sizes[-1] * factor, most))
    return sizes
