"""Starts the fake engine in a process of its own."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import msgspec

from octavo.config.schedule import ScheduleConfig
from octavo.engine.client import EngineClient
from octavo.engine.spawn import EngineProcess
from octavo.frontend.service import TextService
from tests.engine_process.fake_core import FACTORY, Options
from tests.frontend.bytes_model import make_intake


def start_process(num_fronts: int = 1, **options: object) -> EngineProcess:
    encoded = msgspec.msgpack.encode(Options(**options))  # pyright: ignore[reportArgumentType]
    return EngineProcess(FACTORY, encoded, num_fronts)


@contextlib.asynccontextmanager
async def running_client(**options: object) -> AsyncIterator[tuple[EngineClient, EngineProcess]]:
    process = start_process(**options)
    client = EngineClient(process)
    try:
        await client.start()
        yield client, process
    finally:
        await client.close()


@contextlib.asynccontextmanager
async def running_service(
    limits: ScheduleConfig | None = None, **options: object
) -> AsyncIterator[tuple[TextService, EngineProcess]]:
    async with running_client(**options) as (client, process):
        service = TextService(client, make_intake(), limits)
        try:
            yield service, process
        finally:
            await service.close()
