"""The server's description of itself is true, and no request that it allows or forbids is answered with 500."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from starlette.routing import Route

from octavo.config.serve import ServeConfig
from octavo.frontend.server.app import create_app
from octavo.frontend.server.health import PAGES
from tests.server.fake_service import FakeService
from tests.server.harness import CHAT, TEXT, client, run
from tools import openapi

DESCRIBED: dict[str, Any] = json.loads(openapi.render())
HI = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
# A body that is answered with 200, into which generated fields are put.
GOOD: dict[str, dict[str, Any]] = {
    "/v1/completions": TEXT,
    "/v1/chat/completions": CHAT,
    "/v1/messages": {**HI, "max_tokens": 4},
    "/v1/messages/count_tokens": HI,
    "/v1/responses": {"model": "tiny", "input": "Hi", "max_output_tokens": 4},
    "/api/chat": {**HI, "stream": False},
    "/api/generate": {"model": "tiny", "prompt": "Hi", "stream": False},
    "/api/show": {"model": "tiny"},
    "/inference/v1/generate": {"token_ids": [1, 2, 3]},
    "/tokenize": {"prompt": "Hi"},
    "/detokenize": {"tokens": [1, 2]},
}


def test_the_file_is_what_the_routes_say() -> None:
    written = openapi.FILE.read_text(encoding="utf-8")
    assert written == openapi.render(), "write the generated pages anew: python -m tools.pages"
    app = create_app(FakeService(), ServeConfig(), model="m")
    routes = [route for route in app.routes if isinstance(route, Route) and route.path not in PAGES]
    served = {(method, route.path_format) for route in routes for method in (route.methods or set()) - {"HEAD"}}
    told = {(method.upper(), path) for path, methods in DESCRIBED["paths"].items() for method in methods}
    assert told == served
    assert set(GOOD) == set(openapi.BODIES)
    chat = DESCRIBED["components"]["schemas"]["ChatBody"]
    assert chat["required"] == ["messages"]
    assert {"temperature", "tools", "stream"} <= set(chat["properties"])


def test_the_page_and_the_file_are_served_to_all(service: FakeService) -> None:
    async def ask() -> None:
        async with client(service, ServeConfig(api_key=("k",))) as http:
            page, file = await http.get("/docs"), await http.get("/openapi.json")
        assert (page.headers["content-type"], file.headers["content-type"]) == (
            "text/html; charset=utf-8",
            "application/json",
        )
        assert file.json() == DESCRIBED

    run(ask())


def _send(path: str, method: str, bodies: list[Any]) -> list[httpx.Response]:
    """Send bodies to a server of its own."""

    async def ask() -> list[httpx.Response]:
        config = ServeConfig(served_model_name=("tiny",), max_body_bytes=2**20)
        async with client(FakeService(), config) as http:
            return [await asyncio.wait_for(http.request(method, path, **body), 10) for body in bodies]

    return run(ask())


def _check(path: str, answers: list[httpx.Response]) -> None:
    known = {"200", *DESCRIBED["paths"][path]["post"]["responses"]}
    for answer in answers:
        assert str(answer.status_code) in known, answer.text
        if answer.status_code != 200:
            error = answer.json()["error"]
            assert error if isinstance(error, str) else error["message"]


def _cases(path: str, *, wrong: bool) -> Any:
    mode = schemathesis.GenerationMode.NEGATIVE if wrong else schemathesis.GenerationMode.POSITIVE
    return schemathesis.openapi.from_dict(DESCRIBED)[path]["POST"].as_strategy(generation_mode=mode)


quick = settings(
    max_examples=7, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


@pytest.mark.parametrize("path", list(GOOD))
def test_no_body_is_answered_with_500(path: str) -> None:
    statuses: set[int] = set()
    good = GOOD[path]

    def send(case: Any) -> None:
        given_body, rng = case.body, random.Random(0)
        bodies: list[Any] = [{"json": given_body}]
        if isinstance(given_body, dict):
            # One generated field at a time reaches what a body of nonsense does not.
            names = rng.sample(sorted(given_body), min(4, len(given_body)))
            bodies += [{"json": {**good, name: given_body[name]}} for name in names if name != "model"]
        answers = _send(path, "POST", [body for body in bodies if _fits(body)])
        _check(path, answers)
        statuses.update(answer.status_code for answer in answers)

    quick(given(case=_cases(path, wrong=False))(send))()
    quick(given(case=_cases(path, wrong=True))(send))()
    assert [answer.status_code for answer in _send(path, "POST", [{"json": good}])] == [200]
    assert 400 in statuses


def _fits(body: Any) -> bool:
    """Whether a client can write it as JSON at all."""
    try:
        json.dumps(body["json"], allow_nan=False).encode()
    except (ValueError, TypeError):
        return False
    return True
