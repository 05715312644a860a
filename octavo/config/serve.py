"""The HTTP face."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.config.fields import check_options, option


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig:
    """Where to listen, and what the model is called there."""

    host: str = option("127.0.0.1", "address to listen on")
    port: int = option(8000, "port to listen on; 0 takes a free one", low=0, high=65535)
    served_model_name: tuple[str, ...] = option(
        (), "names of the model in the API, the first is shown; its path if not given"
    )
    shutdown_timeout: float = option(30.0, "seconds that running requests get to finish after SIGTERM", low=0.0)
    max_body_bytes: int = option(32 * 2**20, "largest request body", low=1024)
    max_logprobs: int = option(20, "alternatives per token that a request may ask for", low=0)

    def __post_init__(self) -> None:
        check_options(self)
