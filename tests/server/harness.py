"""A server in this process, or on loopback, over the fake service."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

import httpx
import pytest
import uvicorn

from octavo.config.serve import ServeConfig
from octavo.frontend.server.app import create_app
from octavo.frontend.server.http import LimitedHttpProtocol
from tests.server.fake_service import FakeService

Api = TypeVar("Api")
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
TEXT = {"model": "tiny", "prompt": "Hi", "max_tokens": 4}


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, 20))


@contextlib.asynccontextmanager
async def client(service: FakeService, config: ServeConfig) -> AsyncGenerator[httpx.AsyncClient]:
    """Yield a client that calls the application in this process."""
    transport = httpx.ASGITransport(create_app(service, config, model="fake/model"), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as http:
        yield http


@contextlib.asynccontextmanager
async def loopback(service: FakeService, config: ServeConfig) -> AsyncGenerator[str]:
    """Yield the URL of a real server on a free loopback port, for tests in which connections matter."""
    app = create_app(service, config, model="fake/model")
    http: Any = functools.partial(LimitedHttpProtocol, 60, 60, [])
    server = uvicorn.Server(uvicorn.Config(app, http=http, port=0, lifespan="off", log_config=None))
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await task


def with_client(
    service: FakeService,
    config: ServeConfig,
    connect: Callable[[str], AbstractAsyncContextManager[Api]],
    work: Callable[[Api], Awaitable[None]],
) -> None:
    """Do some work with somebody's own client of a real server; connect: makes it, from the server's URL."""

    async def go() -> None:
        async with loopback(service, config) as url, connect(url) as api:
            await work(api)

    run(go())


@contextlib.contextmanager
def logged_lines(caplog: pytest.LogCaptureFixture) -> Generator[None]:
    """Let caplog hear Octavo's own loggers, which hand nothing up."""
    logger = logging.getLogger("octavo")
    logger.addHandler(caplog.handler)
    try:
        yield
    finally:
        logger.removeHandler(caplog.handler)


def events_of(text: str) -> list[str]:
    """Return the data of each server-sent event."""
    events = text.split("\n\n")
    assert events.pop() == ""
    assert all(event.startswith("data: ") and "\n" not in event for event in events)
    return [event.removeprefix("data: ") for event in events]


def samples(text: str) -> dict[str, float]:
    """Return every sample of a metrics page: name with labels -> value."""
    rows = [line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, value in rows}
