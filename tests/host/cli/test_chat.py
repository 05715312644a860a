"""The terminal chat: history, /reset, a stopped answer, errors; and the voice that talks to a server."""

from __future__ import annotations

import asyncio
import builtins
import io
import json
import signal
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from octavo.base.errors import ConfigError, GenerationError, OctavoError
from octavo.cli import chat, run
from octavo.cli.chat import Conversation
from octavo.cli.voices import HttpVoice, Piece, Turn, Wishes


class Parrot:
    """Says how many turns it heard; `trouble` is raised in the middle, or somebody presses Ctrl-C there."""

    def __init__(self) -> None:
        self.heard: list[list[Turn]] = []
        self.wishes: list[Wishes] = []
        self.trouble: OctavoError | None = None
        self.interrupted = False
        self.left = 0
        self.completed: list[str] = []

    async def answer(self, turns: Sequence[Turn], wishes: Wishes) -> AsyncIterator[Piece]:
        self.heard.append(list(turns))
        self.wishes.append(wishes)
        try:
            yield Piece(text=f"{len(turns)} ")
            if self.interrupted:
                signal.raise_signal(signal.SIGINT)
                await asyncio.sleep(10)
            if self.trouble is not None:
                raise self.trouble
            yield Piece(text="turns", num_tokens=2)
        finally:
            self.left += 1

    async def complete(self, prompt: str, wishes: Wishes) -> AsyncIterator[Piece]:
        self.completed.append(prompt)
        yield Piece(text=prompt)

    async def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def log_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands make logs quiet; other tests want them."""
    monkeypatch.setenv("OCTAVO_LOG_LEVEL", "INFO")


@pytest.fixture
def parrot() -> Parrot:
    return Parrot()


@pytest.fixture
def talk(parrot: Parrot) -> Iterator[Conversation]:
    # Whoever starts the tests in the background has Ctrl-C ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with asyncio.Runner() as runner:
        yield Conversation(runner, parrot, Wishes(), "Be brief.")
    signal.signal(signal.SIGINT, before)


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
    assert "/quit   leave (so does Ctrl-D)" in capsys.readouterr().out


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


def test_undo_and_retry(parrot: Parrot, talk: Conversation, capsys: pytest.CaptureFixture[str]) -> None:
    assert not talk.take("/undo")
    assert not talk.take("/retry")
    talk.take("one")
    talk.take("two")
    assert talk.take("/retry")
    assert [turn["content"] for turn in parrot.heard[2]] == ["Be brief.", "one", "2 turns", "two"]
    assert len(talk.turns) == 5
    talk.take("/undo")
    assert [turn["content"] for turn in talk.turns] == ["Be brief.", "one", "2 turns"]
    talk.take("/show")
    shown = capsys.readouterr()
    assert shown.out.endswith("system: Be brief.\nuser: one\nassistant: 2 turns\n")
    assert shown.err == "error: nothing was said yet\nerror: nothing was asked yet\n"


def test_settings(parrot: Parrot, talk: Conversation, capsys: pytest.CaptureFixture[str]) -> None:
    talk.take("/set temperature 0.25")
    talk.take("/set max_tokens 7")
    talk.take("/set seed 3")
    talk.take("/set seed")
    talk.take("one")
    assert parrot.wishes[0] == Wishes(temperature=0.25, max_tokens=7)
    assert "(max_tokens 7, temperature 0.25, seed 3)\n(max_tokens 7, temperature 0.25)" in capsys.readouterr().out
    for wrong, message in (
        ("/set temperature hot", "temperature must be a number, not 'hot'"),
        ("/set top_p 7", "top_p must be in (0, 1], not 7.0"),
        ("/set temprature 1", "unknown setting 'temprature'; did you mean 'temperature'?"),
        ("/rest", "unknown command '/rest'; did you mean '/reset'? (/help lists them)"),
        ("/save /nowhere/at/all", "cannot write '/nowhere/at/all': No such file or directory"),
        ("/load /nowhere", "cannot read '/nowhere'"),
    ):
        assert not talk.take(wrong)
        assert message in capsys.readouterr().err
    assert len(parrot.heard) == 1


def test_a_conversation_is_kept_and_taken_up_again(
    parrot: Parrot, talk: Conversation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "talk.json"
    talk.take("one")
    talk.take(f"/save {file}")
    talk.take("/system Be long.")
    talk.take("/reset")
    assert talk.turns == [{"role": "system", "content": "Be long."}]
    talk.take(f"/load {file}")
    assert talk.turns == [*parrot.heard[0], {"role": "assistant", "content": "2 turns"}]
    talk.take("/reset")
    assert talk.turns == [SYSTEM]
    for text in ("{}", '[{"role": "user"}]', '[{"role": "user", "content": 5}]'):
        file.write_text(text)
        assert not talk.take(f"/load {file}")
    assert "holds no conversation" in capsys.readouterr().err


def test_figures_after_an_answer(talk: Conversation, capsys: pytest.CaptureFixture[str]) -> None:
    talk.take("one")
    talk.take("/stats")
    talk.take("two")
    out = capsys.readouterr().out.splitlines()
    assert out[:3] == ["2 turns", "(figures are on)", "4 turns"]
    assert out[3].startswith("[2 tokens, first after 0.0")


def test_a_text_of_several_lines(parrot: Parrot, talk: Conversation, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ['"""def f():', "    return 1", '"""', '"""one line"""', "/quit"]
    prompts: list[str] = []

    def typed(prompt: str) -> str:
        prompts.append(prompt)
        return lines.pop(0)

    monkeypatch.setattr(builtins, "input", typed)
    assert talk.talk() == 0
    assert [turns[-1]["content"] for turns in parrot.heard] == ["def f():\n    return 1", "one line"]
    assert prompts == ["> ", ". ", ". ", "> ", "> "]


def test_quick_asks_once_and_typed_lines_are_kept(
    parrot: Parrot, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def open_parrot(_parsed: Any) -> Parrot:
        return parrot

    monkeypatch.setattr(chat, "open_voice", open_parrot)
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "octavo"))
    assert chat.main(["-q", "one", "--temperature", "0", "--system", "Be brief.", "--seed", "5"]) == 0
    assert capsys.readouterr().out == "2 turns\n"
    assert parrot.wishes == [Wishes(temperature=0.0, seed=5)]
    assert list(tmp_path.iterdir()) == []
    parrot.trouble = GenerationError("too long")
    assert chat.main(["-q", "one"]) == 1
    parrot.trouble = None
    monkeypatch.setattr(builtins, "input", lambda _: "/quit")
    assert chat.main(["--no-history"]) == 0
    assert list(tmp_path.iterdir()) == []
    assert chat.main([]) == 0
    history = tmp_path / "octavo" / "chat_history"
    assert history.stat().st_mode & 0o777 == 0o600


def test_run_prints_one_answer(
    parrot: Parrot, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def open_parrot(_parsed: Any) -> Parrot:
        return parrot

    monkeypatch.setattr(run, "open_voice", open_parrot)
    assert run.main(["What?", "--system", "Be brief.", "--max-tokens", "3", "--stats"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "2 turns\n"
    assert shown.err.startswith("[2 tokens in 0.0")
    assert parrot.heard == [[SYSTEM, {"role": "user", "content": "What?"}]]
    assert parrot.wishes == [Wishes(temperature=0.0, max_tokens=3)]
    monkeypatch.setattr(sys, "stdin", io.StringIO("from a pipe"))
    assert run.main(["-", "--raw"]) == 0
    assert parrot.completed == ["from a pipe"]
    for arguments, message in (
        (["", "--raw"], "the prompt is empty"),
        (["x", "--raw", "--system", "y"], "no system prompt"),
    ):
        with pytest.raises(ConfigError, match=message):
            run.main(arguments)
    with pytest.raises(ConfigError, match="max_tokens must be between 1"):
        run.main(["x", "--max-tokens", "0"])


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


def test_a_plain_text_is_continued_over_http(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_API_KEY", "secret")
    chunks = ['{"choices":[{"index":0,"text":"b"}]}', '{"choices":[],"usage":{"completion_tokens":1}}', "[DONE]"]
    voice, seen = _voice(200, "".join(f"data: {chunk}\n\n" for chunk in chunks).encode())

    async def listen() -> list[Piece]:
        return [piece async for piece in voice.complete("a", Wishes(temperature=0.0, top_k=4))]

    assert asyncio.run(listen()) == [Piece(text="b"), Piece(text="", num_tokens=1)]
    assert str(seen[0].url) == "http://server/v1/completions"
    assert seen[0].headers["Authorization"] == "Bearer secret"
    sent = json.loads(seen[0].content)
    assert (sent["prompt"], sent["temperature"], sent["top_k"], "top_p" in sent) == ("a", 0.0, 4, False)


def test_a_server_that_is_not_there() -> None:
    with pytest.raises(OctavoError, match="does not answer"):
        _heard(HttpVoice("http://127.0.0.1:9"))
