"""Several models behind one server: each is loaded when it is first asked for, and the one unused for longest makes room.

Every model has an engine of its own. One that has to go takes no new requests, finishes those it has, and ends; requests for
it wait meanwhile, in the order in which they came, and bring it back.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Container, Sequence
from dataclasses import dataclass, field

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from octavo.base.errors import InvalidRequestError, NotFoundError, OctavoError, QueueFullError, ShuttingDownError
from octavo.base.logging import get_logger
from octavo.frontend.server.body import BODY, decode_body, read_body
from octavo.frontend.server.context import CONTEXT, ServerContext
from octavo.frontend.server.disconnect import ClientGoneError, until_disconnect
from octavo.frontend.server.errors import error_response, route_path
from octavo.frontend.service import TextService
from octavo.protocol.output import EngineStats

# Seconds that answers which are made in the background get to finish.
_BACKGROUND_SECONDS = 60.0
_log = get_logger(__name__)


class _Named(msgspec.Struct, frozen=True):
    model: str | None = None


@dataclass(slots=True, kw_only=True)
class _Book:
    context: ServerContext
    num_calls: int = 0
    idle: asyncio.Event = field(default_factory=asyncio.Event)


class Shelf:
    """The models of a server; stands where one model's service stands for all that needs no model.

    load: starts a model's engine and returns what routes are given. most: engines that run at once. max_waiting: requests that
    may wait for an engine to start; 0 is no limit.
    """

    max_model_len = tokenizer = chat_template = None
    healthy = alive = True  # An engine that died is started again by the next request for it.

    def __init__(
        self, names: Sequence[str], load: Callable[[str], Awaitable[ServerContext]], *, most: int, max_waiting: int = 0
    ) -> None:
        self.names = tuple(names)
        self.draining = False
        self.num_open = 0
        self._load = load
        self._most = most
        self._max_waiting = max_waiting
        self._num_waiting = 0
        self._books: dict[str, _Book] = {}  # The one used last is the last.
        self._lock = asyncio.Lock()

    @property
    def loaded(self) -> dict[str, TextService]:
        """The services of the models whose engines run."""
        return {name: book.context.service for name, book in self._books.items()}

    def problem(self) -> OctavoError | None:
        """Return why no request is taken now; None if they are."""
        return ShuttingDownError("the server is shutting down and takes no new requests") if self.draining else None

    def stats(self) -> EngineStats:
        """Return the sum of all engines that run."""
        every = [msgspec.structs.asdict(found) for service in self.loaded.values() if (found := service.stats())]
        return EngineStats(**{name: sum(one[name] for one in every) for name in EngineStats.__struct_fields__})

    async def reset_prefix_cache(self) -> bool:
        """Forget the cached prefixes of all engines that run."""
        return all([await service.reset_prefix_cache() for service in self.loaded.values()])

    async def drain(self, timeout: float) -> bool:
        """Refuse new requests, let running ones finish for `timeout` seconds; True if none was aborted."""
        self.draining = True
        drained = await asyncio.gather(*(service.drain(timeout) for service in self.loaded.values()))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout), self._lock:  # Whoever makes room or loads is done then.
                return all(drained)
        return False

    async def close(self) -> None:
        """End all engines."""
        await asyncio.gather(*(service.close() for service in self.loaded.values()))

    @contextlib.asynccontextmanager
    async def use(self, name: str, receive: Receive) -> AsyncGenerator[ServerContext]:
        """Lend a model for a request. Raises what loading it raises, QueueFullError, ShuttingDownError and ClientGoneError."""
        self.num_open += 1
        try:
            book = self._books.get(name)
            if book is None or not book.context.service.healthy:
                book = await self._fetch(name, receive)
            self._books[name] = self._books.pop(name)
            book.num_calls += 1
            book.idle.clear()
            try:
                yield book.context
            finally:
                book.num_calls -= 1
                if not book.num_calls:
                    book.idle.set()
        finally:
            self.num_open -= 1

    async def _fetch(self, name: str, receive: Receive) -> _Book:
        if self._max_waiting and self._num_waiting >= self._max_waiting:
            raise QueueFullError(f"{self._max_waiting} requests wait for a model already; try again later")
        self._num_waiting += 1
        try:
            await until_disconnect(receive, self._lock.acquire())
            try:
                if name in self._books and not self._books[name].context.service.healthy:
                    await self._return(name, receive)
                if name not in self._books:
                    while len(self._books) >= self._most:
                        await self._return(next(iter(self._books)), receive)
                    if (problem := self.problem()) is not None:
                        raise problem
                    _log.info("loading %s", name)
                    self._books[name] = _Book(context=await self._load(name))
                    self._books[name].idle.set()
                return self._books[name]
            finally:
                self._lock.release()
        finally:
            self._num_waiting -= 1

    async def _return(self, name: str, receive: Receive) -> None:
        """End a model's engine, once the requests that it has are done, and if the client that needs its room is still there."""
        book = self._books.pop(name)
        try:
            await until_disconnect(receive, book.idle.wait())
        except BaseException:
            self._books = {name: book, **self._books}
            raise
        await book.context.service.drain(_BACKGROUND_SECONDS)
        _log.info("unloading %s", name)
        await book.context.service.close()

    def middleware(self, app: ASGIApp, limit: int, paths: Container[str]) -> ASGIApp:
        """Return an application that gives requests to `paths` their model's context. limit: bytes of a body."""

        async def chosen(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http" or scope["method"] != "POST" or route_path(scope) not in paths:
                await app(scope, receive, send)
                return
            try:
                scope[BODY] = await read_body(Request(scope, receive), limit)
                async with self.use(self._asked(scope[BODY]), receive) as scope[CONTEXT]:
                    await app(scope, receive, send)
            except ClientGoneError:
                await Response(status_code=499)(scope, receive, send)
            except OctavoError as error:
                await error_response(error, route_path(scope))(scope, receive, send)

        return chosen

    def _asked(self, data: bytes) -> str:
        name, names = decode_body(_Named, data).model, self.names
        if name is None:
            raise InvalidRequestError(f"model is required: one of {', '.join(names)}", field="model")
        for known in (name, name.removesuffix(":latest")):  # Clients of Ollama's may add it.
            if known in names:
                return known
        raise NotFoundError(f"the model {name!r} does not exist; served here: {', '.join(names)}", field="model")
