"""The terminal chat: history, /reset, a stopped answer, errors; and the voice that talks to a server."""

from __future__ import annotations

import asyncio
import builtins
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import httpx
import pytest

from octavo.base.errors import GenerationError, OctavoError
from octavo.cli.chat import Conversation
from octavo.cli.voices import HttpVoice, Piece, Turn, Wishes


class Parrot:
    """Says how many turns it heard; `trouble` is raised in the middle, or somebody presses Ctrl-C there."""

    def __init__(self) -> None:
        self.heard: list[list[Turn]] = []
        self.trouble: OctavoError | None = None
        self.interrupted = False
        self.left = 0

    async def answer(self, turns: Sequence[Turn], wishes: Wishes) -> AsyncIterator[Piece]:
        self.heard.append(list(turns))
        try:
            yield Piece(text=f"{len(turns)} ")
            if self.interrupted:
                signal.raise_signal(signal.SIGINT)
                await asyncio.sleep(10)
            if self.trouble is not None:
                raise self.trouble
            yield Piece(text="turns")
        finally:
            self.left += 1

    async def close(self) -> None:
        pass


@pytest.fixture
def parrot() -> Parrot:
    return Parrot()


@pytest.fixture
def talk(parrot: Parrot) -> Iterator[Conversation]:
    with asyncio.Runner() as runner:
        yield Conversation(runner, parrot, Wishes(), "Be brief.")


SYSTEM = {"role": "system", "content": "Be brief."}


def test_every_answer_hears_the_history(parrot: Parrot, talk: Conversation, capsys: pytest.CaptureFixture[str]) -> None:
    talk.take("one")
    talk.take("two")
    assert parrot.heard[1] == [
        SYSTEM,
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "2 turns"},
        {"role": "user", "content": "two"},
    ]
    assert capsys.readouterr().out == "2 turns\n4 turns\n"


def test_reset_help_and_empty_lines(parrot: Parrot, talk: Conversation, capsys: pytest.CaptureFixture[str]) -> None:
    talk.take("one")
    talk.take("/reset")
    talk.take("/help")
    talk.take("")
    talk.take("two")
    assert parrot.heard[1] == [SYSTEM, {"role": "user", "content": "two"}]
    assert "/quit leaves" in capsys.readouterr().out


def test_ctrl_c_stops_the_answer_and_keeps_what_was_said(
    parrot: Parrot, talk: Conversation, capsys: pytest.CaptureFixture[str]
) -> None:
    parrot.interrupted = True
    talk.take("one")
    assert capsys.readouterr().out == "2  (stopped)\n"
    assert parrot.left == 1
    parrot.interrupted = False
    talk.take("two")
    assert parrot.heard[1][1:3] == [{"role": "user", "content": "one"}, {"role": "assistant", "content": "2 "}]


def test_an_error_does_not_end_the_conversation(
    parrot: Parrot, talk: Conversation, capsys: pytest.CaptureFixture[str]
) -> None:
    parrot.trouble = GenerationError("too long")
    talk.take("one")
    assert "error: too long" in capsys.readouterr().err
    parrot.trouble = None
    talk.take("two")
    assert parrot.heard[1][-1] == {"role": "user", "content": "two"}


def test_the_loop_ends_with_quit_and_with_the_end_of_input(
    parrot: Parrot, talk: Conversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[Any] = ["one", KeyboardInterrupt(), "two", EOFError(), "three", "/quit"]

    def typed(_: str) -> str:
        line = lines.pop(0)
        if isinstance(line, BaseException):
            raise line
        return line

    monkeypatch.setattr(builtins, "input", typed)
    assert talk.talk() == 0
    assert len(parrot.heard) == 2
    assert talk.talk() == 0
    assert (len(parrot.heard), lines) == (3, [])


def _voice(status: int, body: bytes) -> tuple[HttpVoice, list[httpx.Request]]:
    seen: list[httpx.Request] = []

    def reply(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(status, content=body)

    return HttpVoice("http://server/v1/", transport=httpx.MockTransport(reply)), seen


def _heard(voice: HttpVoice) -> list[Piece]:
    async def listen() -> list[Piece]:
        pieces = [piece async for piece in voice.answer([{"role": "user", "content": "x"}], Wishes())]
        await voice.close()
        return pieces

    return asyncio.run(listen())


def test_a_voice_over_http_reads_the_stream() -> None:
    chunks = [
        '{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}],"usage":null}',
        '{"choices":[{"index":0,"delta":{"content":"acht 八"}}],"usage":null}',
        '{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"usage":null}',
        '{"choices":[],"usage":{"completion_tokens":3}}',
        "[DONE]",
    ]
    voice, seen = _voice(200, "".join(f"data: {chunk}\n\n" for chunk in chunks).encode())
    assert _heard(voice) == [Piece(text="acht 八"), Piece(text="", num_tokens=3)]
    assert str(seen[0].url) == "http://server/v1/chat/completions"


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (400, b'{"error":{"message":"too long"}}', "too long"),
        (502, b"<html>", "status 502"),
        (200, b'data: {"error":{"message":"broken"}}\n\ndata: [DONE]\n\n', "broken"),
    ],
)
def test_a_voice_over_http_says_what_went_wrong(status: int, body: bytes, message: str) -> None:
    voice, _ = _voice(status, body)
    with pytest.raises(GenerationError, match=message):
        _heard(voice)


def test_a_server_that_is_not_there() -> None:
    with pytest.raises(OctavoError, match="does not answer"):
        _heard(HttpVoice("http://127.0.0.1:9"))
