"""Who answers in the terminal: an engine of our own, or a server somewhere. Both give text piece by piece."""

from __future__ import annotations

import argparse
import json
from collections.abc import AsyncGenerator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import httpx

from octavo import launch
from octavo.base.errors import ConfigError, GenerationError, InvalidRequestError, OctavoError
from octavo.base.naming import unknown_name
from octavo.cli.own_server import client_of
from octavo.config.flags import engine_config, given_options
from octavo.frontend.service import TextService
from octavo.protocol.sampling import SamplingParams

Turn = dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Some text of an answer; num_tokens: the answer's tokens so far, None where it is not known."""

    text: str
    num_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """How answers are sampled, with the names of SamplingParams; None leaves it to the model and the server."""

    max_tokens: int | None = None
    temperature: float | None = 0.7
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None

    @property
    def given(self) -> dict[str, Any]:
        """What was wished for."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def params(self) -> SamplingParams:
        """Return the parameters of an engine; raises InvalidRequestError naming what is out of range."""
        fields: dict[str, Any] = {"max_tokens": None, **self.given}
        return SamplingParams(**fields)

    def changed(self, name: str, value: str) -> Wishes:
        """Return the wishes with one changed, given as text ("" takes it back); raises InvalidRequestError."""
        known = asdict(self)
        if name not in known:
            raise InvalidRequestError(unknown_name("setting", name, known))
        kind = float if name in ("temperature", "top_p") else int
        try:
            wishes = replace(self, **{name: kind(value) if value else None})
        except ValueError as error:
            raise InvalidRequestError(f"{name} must be a number, not {value!r}", field=name) from error
        wishes.params()
        return wishes

    def describe(self) -> str:
        """Return what was wished for, in words."""
        return ", ".join(f"{name} {value}" for name, value in self.given.items()) or "nothing is set"


def add_voice_flags(parser: argparse.ArgumentParser, *, temperature: float) -> None:
    """Add the flags that say who answers, and how."""
    parser.add_argument("--url", help="ask a running server instead, for example http://127.0.0.1:8000")
    parser.add_argument("--system", "--system-prompt", metavar="TEXT", help="instruction before the conversation")
    parser.add_argument("--max-tokens", type=int, help="longest answer in tokens (default: to the end of the context)")
    parser.add_argument(
        "--temperature", type=float, default=temperature, help="0 always takes the likeliest (default %(default)s)"
    )
    parser.add_argument("--top-p", type=float, help="draw from the likeliest tokens that have this much probability")
    parser.add_argument("--top-k", type=int, help="draw from this many of the likeliest tokens")
    # `--seed` is the engine's: of dummy weights there, of the draws here.
    parser.add_argument("--stats", action="store_true", help="print tokens and seconds after an answer")


def wishes_of(parsed: Any) -> Wishes:
    """Return how a command line wants answers; raises ConfigError naming what is out of range."""
    wishes = Wishes(
        max_tokens=parsed.max_tokens,
        temperature=parsed.temperature,
        top_p=parsed.top_p,
        top_k=parsed.top_k,
        seed=given_options(parsed).get("seed"),
    )
    try:
        wishes.params()
    except InvalidRequestError as error:
        raise ConfigError(error.message, field=error.field) from error
    return wishes


async def open_voice(parsed: Any) -> Voice:
    """Return who answers, by a command line: the server at --url, or an engine that is started and loaded here."""
    if parsed.url is not None:
        return HttpVoice(parsed.url, given_options(parsed).get("model"))
    return EngineVoice(await launch.start_service(engine_config(parsed)))


class EngineVoice:
    """An engine started for this program."""

    def __init__(self, service: TextService) -> None:
        self._service = service

    async def answer(self, turns: Sequence[Turn], wishes: Wishes) -> AsyncGenerator[Piece]:
        """Yield the next turn's text as it comes."""
        async for piece in self.complete(await self._service.chat_prompt(turns), wishes):
            yield piece

    async def complete(self, prompt: str | list[int], wishes: Wishes) -> AsyncGenerator[Piece]:
        """Yield the continuation of a plain text, or of token ids."""
        num_tokens = 0
        async with await self._service.generate(prompt, wishes.params()) as stream:
            async for output in stream:
                choice = output.outputs[0]
                num_tokens += len(choice.token_ids)
                yield Piece(text=choice.text, num_tokens=num_tokens)
                if choice.finish_reason == "error":
                    raise GenerationError(output.error or "generation failed")

    async def close(self) -> None:
        """End the engine."""
        await self._service.close()


class HttpVoice:
    """A server that speaks OpenAI's routes. url: with or without /v1. model: None takes the server's first.

    transport: how to reach it, for tests. A key is taken from OCTAVO_API_KEY.
    """

    def __init__(
        self, url: str, model: str | None = None, *, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self._base = url.rstrip("/").removesuffix("/v1")
        self._model = model
        self._http = client_of(url, timeout=httpx.Timeout(10.0, read=None), transport=transport)

    def answer(self, turns: Sequence[Turn], wishes: Wishes) -> AsyncGenerator[Piece]:
        """Yield the next turn's text as it comes; the last piece is empty and has the number of tokens."""
        return self._stream("/v1/chat/completions", {"messages": list(turns)}, wishes)

    def complete(self, prompt: str, wishes: Wishes) -> AsyncGenerator[Piece]:
        """Yield the continuation of a plain text, in the same way."""
        return self._stream("/v1/completions", {"prompt": prompt}, wishes)

    async def _stream(self, route: str, body: dict[str, Any], wishes: Wishes) -> AsyncGenerator[Piece]:
        body |= {"model": self._model, "stream": True, "stream_options": {"include_usage": True}, **wishes.given}
        try:
            async with self._http.stream("POST", route, json=body) as response:
                if response.status_code != 200:
                    raise GenerationError(_error_text(await response.aread(), response.status_code))
                async for line in response.aiter_lines():
                    if line.startswith("data: ") and line != "data: [DONE]":
                        for piece in _pieces(json.loads(line.removeprefix("data: "))):
                            yield piece
        except httpx.HTTPError as error:
            raise OctavoError(f"{self._base} does not answer: {error}") from error

    async def close(self) -> None:
        """Close the connection."""
        await self._http.aclose()


# Answers conversations. Leaving `answer` early stops the generation.
Voice = EngineVoice | HttpVoice


def _pieces(chunk: dict[str, Any]) -> list[Piece]:
    """Return the text in one chunk of a stream; raises GenerationError for an error event."""
    if "error" in chunk:
        raise GenerationError(chunk["error"]["message"])
    texts = [choice["delta"].get("content") if "delta" in choice else choice["text"] for choice in chunk["choices"]]
    pieces = [Piece(text=text) for text in texts if text]
    usage = chunk.get("usage")
    if usage:
        pieces.append(Piece(text="", num_tokens=usage["completion_tokens"]))
    return pieces


def _error_text(body: bytes, status: int) -> str:
    try:
        return json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return f"the server answered with status {status}"
