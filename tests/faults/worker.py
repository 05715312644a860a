"""A logits processor that breaks the worker: some steps after a request with a certain seed has come."""

from __future__ import annotations

BREAKING_SEED, BREAKS_AFTER = 666, 6


class Breaks:
    """See the module, and `LogitsProcessor`."""

    graph_safe = False

    def __init__(self, vocab_size, num_slots, device) -> None:
        self._left = -1

    def admit(self, admission) -> bool:
        """Every row is counted once one has the seed."""
        if admission.sampling.seed == BREAKING_SEED:
            self._left = BREAKS_AFTER
        return True

    def release(self, slot) -> None:
        """Nothing is kept by slot."""

    def apply(self, logits, slots, index, positions):
        """Count a step."""
        self._left -= 1
        if self._left == 0:
            raise RuntimeError("the worker broke on purpose")
        return logits
