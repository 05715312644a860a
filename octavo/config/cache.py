"""How much memory pages get and how they are shared."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.config.fields import check_options, option


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """The page pool and the prefix cache."""

    kv_cache_memory: int | None = option(None, "bytes of the page pool; sized from free memory if not given", low=1)
    gpu_memory_utilization: float = option(0.9, "the pool may fill device memory up to this share", low=0.01, high=1.0)
    block_size: int | None = option(
        None,
        "tokens per block, as the model's attention takes them: 16, 32, 64 or 128; the solver's choice if not given",
        low=16,
        high=128,
    )
    mamba_block_size: int | None = option(
        None, "tokens between two checkpoints of a recurrent state; the solver's choice if not given", low=8
    )
    enable_prefix_caching: bool = option(True, "requests that begin alike share pages")
    least_shared_tokens: int = option(
        16384, "tokens that a step must be spared for pages to be read once for all that share them; 0 is never", low=0
    )
    num_pages: int | None = option(None, "exact number of pages, for tests", low=1)

    def __post_init__(self) -> None:
        check_options(self)
