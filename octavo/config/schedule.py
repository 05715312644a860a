"""How many requests run at once and who goes first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from octavo.config.fields import check_options, option


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleConfig:
    """Limits of a step and of the queue."""

    max_num_seqs: int = option(256, "sequences that run at once", low=1, high=65536)
    max_num_batched_tokens: int | None = option(
        None,
        "tokens computed in one step, prompts and outputs together; 256 on a CPU, 8192 elsewhere if not given",
        low=1,
    )
    scheduling_policy: Literal["fcfs", "priority"] = option(
        "fcfs", "first come first served, or lowest priority number first"
    )
    async_scheduling: bool = option(True, "plan one step ahead of the device")
    max_num_queued_reqs: int = option(0, "waiting requests beyond which new ones get 429; 0 is no limit", low=0)
    max_num_queued_tokens: int = option(
        0, "tokens of waiting prompts beyond which new ones get 429, unless none waits; 0 is no limit", low=0
    )
    queue_timeout: float = option(
        0.0, "seconds that a request may wait for the engine to begin with it; then 503; 0 is no limit", low=0.0
    )

    def __post_init__(self) -> None:
        check_options(self)
