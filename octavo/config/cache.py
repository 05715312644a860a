"""How much memory pages get and how they are shared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from octavo.base.errors import ConfigError
from octavo.config.fields import check_options, option


class CacheEvents(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where what the prefix cache keeps is told, in vLLM's words; only this machine is told unless an endpoint says otherwise."""

    enable_kv_cache_events: bool = True
    publisher: Literal["zmq", "null"] = "zmq"
    endpoint: str = "tcp://127.0.0.1:5557"
    replay_endpoint: str | None = None
    buffer_steps: int = 10_000
    hwm: int = 100_000
    max_queue_size: int = 100_000
    topic: str = ""


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
    kv_events_config: dict[str, Any] | None = option(
        None, "where to tell over zmq what the prefix cache keeps and forgets: endpoint, replay_endpoint, topic …"
    )
    num_pages: int | None = option(None, "exact number of pages, for tests", low=1)

    def __post_init__(self) -> None:
        check_options(self)
        _ = self.events  # Raises.

    @property
    def events(self) -> CacheEvents | None:
        """Where cache events are told, None for nowhere. Raises ConfigError."""
        try:
            found = msgspec.convert(self.kv_events_config or {"enable_kv_cache_events": False}, CacheEvents)
        except msgspec.ValidationError as error:
            raise ConfigError(f"kv_events_config: {error}", field="kv_events_config") from error
        return found if found.enable_kv_cache_events and found.publisher == "zmq" else None
