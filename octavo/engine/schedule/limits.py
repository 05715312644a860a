"""What bounds a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleLimits:
    """Settled limits of one engine.

    depth: plans in flight (1 synchronous, 2 one step ahead, pipeline stages + 1). tokens_per_step: what a row may yield at
    most in one step, 1 without speculation. generates: whether the model has a head, or gives vectors only. identity: names
    the model and its weights in persistent prefix keys. least_shared: tokens that a step must read less for rows to be told
    that they share a span; 0 for never.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    policy: Literal["fcfs", "priority"] = "fcfs"
    enable_prefix_caching: bool = True
    depth: int = 2
    tokens_per_step: int = 1
    generates: bool = True
    identity: str = ""
    least_shared: int = 2**14

    @property
    def stages(self) -> int:
        """Pipeline stages. Decodes are spread over as many plans, so that no stage waits for another's."""
        return max(1, self.depth - 1)

    @property
    def plans_per_sequence(self) -> int:
        """Plans in flight that one sequence may be in: two, or one a round where stages pass plans along."""
        return self.depth if self.depth <= 2 else 1
