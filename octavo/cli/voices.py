"""Who answers in the terminal: an engine of our own, or a server somewhere. Both give text piece by piece."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import httpx

from octavo import launch
from octavo.base.errors import GenerationError, OctavoError
from octavo.config.engine import EngineConfig
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
    """How answers are sampled. max_tokens: None goes to the end of the context."""

    max_tokens: int | None = None
    temperature: float = 0.7


class Voice(Protocol):
    """Answers conversations. Leaving `answer` early stops the generation."""

    def answer(self, turns: Sequence[Turn], wishes: Wishes) -> AsyncIterator[Piece]:
        """Yield the next turn's text as it comes."""
        ...

    async def close(self) -> None:
        """Let go of everything."""
        ...


class EngineVoice:
    """An engine started for this program."""

    def __init__(self, service: TextService) -> None:
        self._service = service

    @staticmethod
    async def start(config: EngineConfig) -> EngineVoice:
        """Start an engine and wait until it is loaded."""
        return EngineVoice(await launch.start_service(config))

    async def answer(self, turns: Sequence[Turn], wishes: Wishes) -> AsyncIterator[Piece]:
        """Yield the next turn's text as it comes."""
        async for piece in self._generate(await self._service.chat_prompt(turns), wishes):
            yield piece

    async def complete(self, prompt: str, wishes: Wishes) -> AsyncIterator[Piece]:
        """Yield the continuation of a plain text."""
        async for piece in self._generate(prompt, wishes):
            yield piece

    async def _generate(self, prompt: str | list[int], wishes: Wishes) -> AsyncIterator[Piece]:
        params = SamplingParams(max_tokens=wishes.max_tokens, temperature=wishes.temperature)
        num_tokens = 0
        async with await self._service.generate(prompt, params) as stream:
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
    """A server that speaks OpenAI's chat route. url: with or without /v1. model: None takes the server's first.

    transport: how to reach it, for tests.
    """

    def __init__(
        self, url: str, model: str | None = None, *, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self._base = url.rstrip("/").removesuffix("/v1")
        self._model = model
        self._http = httpx.AsyncClient(timeout=httpx.Timeout(10.0, read=None), transport=transport)

    async def answer(self, turns: Sequence[Turn], wishes: Wishes) -> AsyncIterator[Piece]:
        """Yield the next turn's text as it comes; the last piece is empty and has the number of tokens."""
        body: dict[str, Any] = {"model": self._model, "messages": list(turns), "temperature": wishes.temperature}
        body |= {"max_tokens": wishes.max_tokens, "stream": True, "stream_options": {"include_usage": True}}
        try:
            async with self._http.stream("POST", f"{self._base}/v1/chat/completions", json=body) as response:
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


def _pieces(chunk: dict[str, Any]) -> list[Piece]:
    """Return the text in one chunk of a stream; raises GenerationError for an error event."""
    if "error" in chunk:
        raise GenerationError(chunk["error"]["message"])
    pieces = [Piece(text=choice["delta"].get("content") or "") for choice in chunk["choices"]]
    usage = chunk.get("usage")
    if usage:
        pieces.append(Piece(text="", num_tokens=usage["completion_tokens"]))
    return [piece for piece in pieces if piece.text or piece.num_tokens is not None]


def _error_text(body: bytes, status: int) -> str:
    try:
        return json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return f"the server answered with status {status}"
