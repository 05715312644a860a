"""What a worker is told at start."""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo.checkpoint.record import Checkpoint
from octavo.config.model import LoadFormat, LogprobsMode, Quantization


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Where weights come from and how they are kept.

    seed: of dummy ones. quantization: bits that plain ones are rounded to. exact: what is multiplied with packed weights stays
    as it is; else it may be rounded to 16 bits.
    """

    load_format: LoadFormat = "auto"
    seed: int = 0
    quantization: Quantization = "auto"
    exact: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """Everything a worker needs to load a model and run plans; every choice is already settled.

    dtype: of weights and activations. max_num_seqs: slots. max_num_batched_tokens: of the largest step. kv_cache_memory: bytes
    of the page pool, None to size it from free memory. block_size: tokens a block, None for the solver's choice.
    memory_utilization: share of device memory that may be used. device: a device name, or "auto". threads: of the tensor
    library on the host, in all ranks together; None leaves its default. tensor, pipeline: ranks on each axis. spread_experts:
    whole experts are spread over the tensor axis, instead of a part of each.  enforce_eager: no step is recorded.
    logits_processors: import paths of the engine's. logprobs_mode: see `LogprobsMode`.
    """

    checkpoint: Checkpoint
    dtype: str
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int = 512
    weights: Weights = field(default_factory=Weights)
    kv_cache_memory: int | None = None
    block_size: int | None = None
    memory_utilization: float = 0.9
    device: str = "auto"
    threads: int | None = None
    tensor: int = 1
    pipeline: int = 1
    spread_experts: bool = False
    enforce_eager: bool = False
    logits_processors: tuple[str, ...] = ()
    logprobs_mode: LogprobsMode = "raw_logprobs"

    @property
    def num_ranks(self) -> int:
        """Ranks in all."""
        return self.tensor * self.pipeline
