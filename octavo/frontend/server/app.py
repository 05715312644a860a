"""The HTTP application: the table of routes and how errors are answered."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import cast
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from octavo.base.env import read_env
from octavo.base.errors import OctavoError
from octavo.base.logging import get_logger
from octavo.config.serve import ServeConfig
from octavo.frontend.server import health
from octavo.frontend.server.context import ServerContext
from octavo.frontend.server.disconnect import ClientGoneError
from octavo.frontend.server.errors import on_defect, on_http_error, on_octavo_error
from octavo.frontend.server.keys import ApiKeys
from octavo.frontend.server.routes import anthropic, chat, completions, generate, ollama, responses, tokens
from octavo.frontend.server.shelf import Shelf
from octavo.frontend.service import TextService
from octavo.frontend.text.dialects.speech import Speech
from octavo.observe.metrics import ServerMetrics
from octavo.protocol.output import EngineStats

_log = get_logger(__name__)
# Methods, path, and what answers it.
ROUTES: tuple[tuple[str, str, Callable[[Request], Awaitable[Response]]], ...] = (
    ("POST", "/v1/completions", completions.completions),
    ("POST", "/v1/chat/completions", chat.chat_completions),
    ("POST", "/v1/messages", anthropic.messages),
    ("POST", "/v1/messages/count_tokens", anthropic.count_tokens),
    ("POST", "/v1/responses", responses.create_response),
    ("GET", "/v1/responses/{id}", responses.show_response),
    ("DELETE", "/v1/responses/{id}", responses.delete_response),
    ("POST", "/v1/responses/{id}/cancel", responses.cancel_response),
    ("POST", "/api/chat", ollama.chat),
    ("POST", "/api/generate", ollama.generate),
    ("GET", "/api/tags", ollama.list_tags),
    ("POST", "/api/show", ollama.show),
    ("GET", "/api/version", health.version),
    ("POST", "/inference/v1/generate", generate.generate),
    ("GET", "/v1/models", health.list_models),
    ("GET", "/v1/models/{model:path}", health.show_model),
    ("POST", "/tokenize", tokens.tokenize),
    ("POST", "/detokenize", tokens.detokenize),
    ("GET", "/health", health.health),
    ("GET", "/ready", health.health),
    ("GET POST", "/ping", health.health),
    ("GET", "/live", health.live),
    ("GET", "/load", health.load),
    ("GET", "/version", health.version),
    ("GET", "/metrics", health.metrics),
    ("POST", "/reset_prefix_cache", health.reset_prefix_cache),
    ("GET", "/stats", health.stats),
    *(("GET", path, health.page) for path in health.PAGES),
)


class _Application(Starlette):
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, and note it if that is asked for."""
        if scope["type"] != "http" or not self.state.context.config.enable_access_log:
            await super().__call__(scope, receive, send)
            return
        began, status = time.monotonic(), 0

        async def watched(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await super().__call__(scope, receive, watched)
        finally:
            fields = {"client": (scope["client"] or ("-",))[0], "method": scope["method"], "path": quote(scope["path"])}
            fields |= {"status": status, "seconds": time.monotonic() - began}
            _log.info("%s %s %s %d %.3f s", *fields.values(), extra={"fields": fields})


def create_app(service: TextService, config: ServeConfig, *, model: str) -> Starlette:
    """Return the application that serves `service`. model: its name where the configuration gives none."""
    return _create(_context(service, config, config.served_model_name or (model,)), [])


def create_library(
    models: Mapping[str, Callable[[], Awaitable[TextService]]], config: ServeConfig, *, max_waiting: int = 0
) -> tuple[Starlette, Shelf]:
    """Return the application that serves several models, and what holds them.

    models: what starts the engine of each, by name. max_waiting: requests that may wait for one to start; 0 is no limit.
    """

    async def load(name: str) -> ServerContext:
        context = _context(await models[name](), config, (name,))
        return dataclasses.replace(context, metrics=metrics[name], responses=every.responses)

    def stats_of(name: str) -> EngineStats | None:
        return shelf.loaded[name].stats() if name in shelf.loaded else None

    shelf = Shelf(list(models), load, most=config.max_loaded_models, max_waiting=max_waiting)
    stats = {name: functools.partial(stats_of, name) for name in models}
    metrics = {name: ServerMetrics(name, stats[name], names=config.metrics_names) for name in models}
    # What needs no model asks for no more than a shelf has.
    every = _context(cast(TextService, shelf), config, shelf.names)
    every.metrics.join(metrics.values())
    paths = {path for methods, path, answer in ROUTES if methods == "POST" and answer != health.reset_prefix_cache}
    return _create(every, [Middleware(shelf.middleware, limit=config.max_body_bytes, paths=paths)]), shelf


def _context(service: TextService, config: ServeConfig, names: tuple[str, ...]) -> ServerContext:
    return ServerContext(
        service=service,
        config=config,
        model_names=names,
        metrics=ServerMetrics(names[0], service.stats, names=config.metrics_names),
        speech=Speech(
            service.tokenizer, service.chat_template, calls=config.tool_call_parser, reasoning=config.reasoning_parser
        ),
        created=int(time.time()),
    )


def _create(context: ServerContext, inner: list[Middleware]) -> Starlette:
    """Return the application. inner: what stands between keys and routes."""
    handlers = {
        OctavoError: on_octavo_error,
        HTTPException: on_http_error,
        ClientGoneError: _on_client_gone,
        Exception: on_defect,
    }
    app = _Application(
        routes=[Route(path, answer, methods=methods.split()) for methods, path, answer in ROUTES],
        exception_handlers=handlers,
        middleware=[*_middleware(context.config), *inner],
    )
    app.router.redirect_slashes = False
    app.state.context = context
    return app


def _middleware(config: ServeConfig) -> list[Middleware]:
    """Return what stands in front of the routes, the outermost first: a browser asks for permission without a key."""
    found: list[Middleware] = []
    if config.allowed_origins:
        pages = Middleware(
            CORSMiddleware,
            allow_origins=config.allowed_origins,
            allow_methods=config.allowed_methods,
            allow_headers=config.allowed_headers,
            allow_credentials=config.allow_credentials,
        )
        found.append(pages)
    env = read_env()
    keys = [*config.api_key, *([env.api_key] if env.api_key else [])]
    admin_keys = [*config.admin_api_key, *([env.admin_api_key] if env.admin_api_key else [])]
    if keys or admin_keys:
        found.append(Middleware(ApiKeys, keys=keys, admin_keys=admin_keys))
    return found


async def _on_client_gone(_request: Request, _error: Exception) -> Response:
    # Nobody reads it; 499 is what logs and proxies know.
    return Response(status_code=499)
