"""The HTTP face."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from octavo.config.fields import check_options, option

MetricsNames = Literal["octavo", "vllm", "both"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig:
    """Where to listen, and what the model is called there."""

    host: str = option("127.0.0.1", "address to listen on")
    port: int = option(8000, "port to listen on; 0 takes a free one", low=0, high=65535)
    api_server_count: int = option(1, "processes that answer HTTP, in front of the one engine", low=1, high=64)
    uds: str | None = option(None, "path of a Unix socket to listen on, instead of host and port")
    root_path: str = option("", "path under which a proxy shows the server")
    api_key: tuple[str, ...] = option(
        (), "keys of which clients send one, on every route but probes and the page; OCTAVO_API_KEY is one more"
    )
    admin_api_key: tuple[str, ...] = option(
        (), "keys for the operator's routes (cache reset, stats), and all others; OCTAVO_ADMIN_API_KEY is one more"
    )
    ssl_keyfile: str | None = option(None, "file of the private key, for HTTPS")
    ssl_certfile: str | None = option(None, "file of the certificate, for HTTPS")
    ssl_ca_certs: str | None = option(None, "file of the authorities that certificates of clients come from")
    ssl_cert_reqs: int = option(
        0, "certificates of clients: 0 not asked for, 1 checked if given, 2 required", low=0, high=2
    )
    ssl_ciphers: str | None = option(None, "ciphers for HTTPS, in OpenSSL's words")
    allowed_origins: tuple[str, ...] = option((), "web origins whose pages may call the server (CORS); * is all")
    allowed_methods: tuple[str, ...] = option(("*",), "methods that such pages may use")
    allowed_headers: tuple[str, ...] = option(("*",), "headers that such pages may send")
    allow_credentials: bool = option(False, "such pages may send cookies and keys that the browser keeps")
    h11_max_incomplete_event_size: int = option(2**16, "most bytes of a request's headers", low=1024)
    served_model_name: tuple[str, ...] = option(
        (), "names of the model in the API, the first is shown; of several models, one each; their paths if not given"
    )
    max_loaded_models: int = option(1, "models that are loaded at once, where several are served", low=1)
    shutdown_timeout: float = option(30.0, "seconds that running requests get to finish after SIGTERM", low=0.0)
    restart_policy: Literal["never", "on-failure"] = option(
        "on-failure", "whether an engine that died is started again; requests get 503 meanwhile, or for good"
    )
    max_restarts: int = option(
        5, "restarts of the engine within ten minutes, after which the server ends with status 1", low=1, high=1000
    )
    read_timeout: float = option(60.0, "seconds in which a request must have come whole; then 408", low=0.1)
    write_timeout: float = option(60.0, "seconds in which a client must take what waits for it", low=0.1)
    timeout_keep_alive: int = option(5, "seconds that a connection is kept for the next request", low=0)
    max_body_bytes: int = option(32 * 2**20, "largest request body", low=1024)
    max_logprobs: int = option(20, "alternatives per token that a request may ask for", low=0)
    default_chat_template_kwargs: dict[str, Any] | None = option(
        None, "variables of the chat template for chats that do not set them"
    )
    trust_request_chat_template: bool = option(
        False, "chats may bring a chat_template of their own, for clients that are trusted"
    )
    tool_call_parser: str = option(
        "auto",
        "how the model calls tools: the name of a dialect; auto finds it in the chat template, none takes no tools",
    )
    reasoning_parser: str = option(
        "auto", "how the model marks its thoughts, in the same way; none leaves them in the text"
    )
    enable_force_include_usage: bool = option(False, "every stream ends with its usage, asked for or not")
    sse_keep_alive_interval: float = option(
        0.0, "seconds of silence after which a stream shows by a comment that it lives; 0 is never", low=0.0
    )
    enable_access_log: bool = option(
        False, "log every call: client, method, path, status and time; never headers, queries or bodies"
    )
    log_format: Literal["auto", "text", "json"] = option(
        "auto", "form of log lines: json is one object a line; auto: as OCTAVO_LOG_FORMAT says, or else text"
    )
    enable_log_requests: bool = option(False, "log every request: its id and sizes, never its text")
    disable_log_stats: bool = option(False, "no log line on what the server does")
    log_stats_interval: float = option(10.0, "seconds between two such lines; an idle server is silent", low=0.1)
    metrics_names: MetricsNames = option("octavo", "first part of the names of metrics; vllm for existing dashboards")

    def __post_init__(self) -> None:
        check_options(self)
