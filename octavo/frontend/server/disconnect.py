"""A client that goes away ends its request, whatever kind of answer it waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

_T = TypeVar("_T")


class ClientGoneError(Exception):
    """The client closed its connection; nobody reads the answer."""


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, _T]) -> _T:
    """Return what `work` returns; cancels it and raises ClientGoneError when the client leaves first.

    `receive` must have delivered the whole body already.
    """
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        watching.result()
        raise ClientGoneError
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
