"""Where the model runs, over how many ranks, and how its steps are launched."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.config.fields import check_options, option


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceConfig:
    """The device."""

    device: str = option("auto", "kind of device, cuda or cpu for example; auto takes the first that the machine has")
    enforce_eager: bool = option(
        False, "launch every kernel of every step, instead of replaying recorded steps as graphs"
    )

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelConfig:
    """Ranks that work together, one process each."""

    tensor_parallel_size: int = option(1, "ranks that share every matrix", low=1, high=1024, short="-tp")
    pipeline_parallel_size: int = option(1, "stages, each with some of the layers", low=1, high=1024, short="-pp")
    enable_expert_parallel: bool = option(
        False, "tensor-parallel ranks hold whole experts each, instead of a part of every expert"
    )
    distributed_timeout_seconds: float = option(
        300.0, "a step that takes longer has a rank that hangs: the engine ends", low=0.1
    )

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def num_ranks(self) -> int:
        """Ranks in all."""
        return self.tensor_parallel_size * self.pipeline_parallel_size
