"""`octavo chat`: a conversation in the terminal."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import sys
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

from octavo.base.env import read_env
from octavo.base.errors import InvalidRequestError, OctavoError
from octavo.base.logging import quiet
from octavo.base.naming import unknown_name
from octavo.cli.voices import Turn, Voice, Wishes, add_voice_flags, open_voice, wishes_of
from octavo.config.flags import FlagParser, add_engine_flags, add_model

_HISTORY_LINES = 1000
_QUOTES = '"""'
_HELP = f"""\
/reset  forget the conversation             /system TEXT  what stands before it; without TEXT, show it
/undo   take back the last turn             /set NAME VALUE  temperature, max_tokens, top_p, top_k or seed
/retry  answer the last question again      /save FILE, /load FILE  the conversation, as JSON
/show   what was said so far                /stats  switch figures after each answer on and off
/quit   leave (so does Ctrl-D)              {_QUOTES} begins and ends a text of several lines; Ctrl-C stops an answer"""


def main(arguments: Sequence[str]) -> int:
    """Talk until /quit; return the exit status."""
    parser = FlagParser(prog="octavo chat", description="Talk to a model in the terminal.")
    add_model(parser)
    add_voice_flags(parser, temperature=0.7)
    parser.add_argument("-q", "--quick", metavar="TEXT", help="ask only this, print the answer and leave")
    parser.add_argument("--no-history", action="store_true", help="do not keep typed lines for the next time")
    add_engine_flags(parser)
    parsed = parser.parse_args(arguments)
    quiet()
    wishes = wishes_of(parsed)
    with asyncio.Runner() as runner:
        voice = runner.run(open_voice(parsed))
        try:
            conversation = Conversation(runner, voice, wishes, parsed.system, stats=parsed.stats)
            if parsed.quick is not None:
                return 0 if conversation.take(parsed.quick) else 1
            with contextlib.nullcontext() if parsed.no_history else _history():
                return conversation.talk()
        finally:
            runner.run(voice.close())


@contextlib.contextmanager
def _history() -> Generator[None]:
    """Give input() line editing, and the lines of earlier conversations."""
    try:
        readline: Any = importlib.import_module("readline")
    except ImportError:
        yield
        return
    file = Path(read_env().cache) / "chat_history"
    with contextlib.suppress(OSError):
        readline.read_history_file(file)
    try:
        yield
    finally:
        readline.set_history_length(_HISTORY_LINES)
        with contextlib.suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch(mode=0o600)
            readline.write_history_file(file)


class Conversation:
    """The turns so far, and the loop that adds to them. stats: print figures after each answer."""

    def __init__(
        self, runner: asyncio.Runner, voice: Voice, wishes: Wishes, system: str | None, *, stats: bool = False
    ) -> None:
        self._runner = runner
        self._voice = voice
        self._wishes = wishes
        self._start: list[Turn] = [{"role": "system", "content": system}] if system else []
        self._stats = stats
        self._commands: dict[str, Callable[[str], None]] = {
            "/reset": self._reset,
            "/undo": self._undo,
            "/retry": self._retry,
            "/show": self._show,
            "/system": self._system,
            "/set": self._set,
            "/save": self._save,
            "/load": self._load,
            "/stats": self._switch_stats,
            "/help": lambda _: print(_HELP),
        }
        self.turns: list[Turn] = list(self._start)

    def talk(self) -> int:
        """Read and answer until the end; return the exit status."""
        print(_HELP)
        while True:
            try:
                text = _read_text()
            except EOFError:
                print()
                return 0
            except KeyboardInterrupt:
                print("\n(/quit or Ctrl-D leaves)")
                continue
            if text in ("/quit", "/exit", "/bye"):
                return 0
            self.take(text)

    def take(self, text: str) -> bool:
        """Do what a text asks for: a command, or an answer. Returns whether nothing went wrong."""
        try:
            name, _, rest = text.partition(" ")
            if name in self._commands:
                self._commands[name](rest.strip())
            elif name.startswith("/") and "\n" not in text:
                raise InvalidRequestError(f"{unknown_name('command', name, self._commands)} (/help lists them)")
            elif text:
                self._answer(text)
        except OctavoError as error:
            print(f"error: {error.message}", file=sys.stderr)
            return False
        return True

    def _answer(self, question: str) -> None:
        asked: Turn = {"role": "user", "content": question}
        texts: list[str] = []
        try:
            self._runner.run(self._print_answer([*self.turns, asked], texts))
        except KeyboardInterrupt:
            print(" (stopped)")
        finally:
            if texts:
                self.turns += [asked, {"role": "assistant", "content": "".join(texts)}]

    async def _print_answer(self, turns: list[Turn], texts: list[str]) -> None:
        began, first, num_tokens = time.perf_counter(), 0.0, 0
        async with contextlib.aclosing(self._voice.answer(turns, self._wishes)) as pieces:
            async for piece in pieces:
                first = first or time.perf_counter() - began
                num_tokens = piece.num_tokens or num_tokens
                if piece.text:
                    texts.append(piece.text)
                print(piece.text, end="", flush=True)
        print()
        if self._stats:
            seconds = time.perf_counter() - began
            print(f"[{num_tokens} tokens, first after {first:.2f} s, {num_tokens / seconds:.1f} tokens/s]")

    def _reset(self, _: str) -> None:
        self.turns = list(self._start)
        print("(a new conversation)")

    def _undo(self, _: str) -> None:
        if len(self.turns) == len(self._start):
            raise InvalidRequestError("nothing was said yet")
        del self.turns[-2:]
        print("(the last turn is forgotten)")

    def _retry(self, _: str) -> None:
        if len(self.turns) == len(self._start):
            raise InvalidRequestError("nothing was asked yet")
        question = self.turns[-2]["content"]
        del self.turns[-2:]
        self._answer(question)

    def _show(self, _: str) -> None:
        for turn in self.turns:
            print(f"{turn['role']}: {turn['content']}")

    def _system(self, text: str) -> None:
        if text:
            rest = self.turns[len(self._start) :]
            self._start = [{"role": "system", "content": text}]
            self.turns = [*self._start, *rest]
        print(self._start[0]["content"] if self._start else "(none)")

    def _set(self, text: str) -> None:
        name, _, value = text.partition(" ")
        self._wishes = self._wishes.changed(name, value.strip())
        print(f"({self._wishes.describe()})")

    def _save(self, path: str) -> None:
        try:
            Path(path).write_text(json.dumps(self.turns, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        except OSError as error:
            raise InvalidRequestError(f"cannot write {path!r}: {error.strerror}") from error

    def _load(self, path: str) -> None:
        try:
            turns = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InvalidRequestError(f"cannot read {path!r}: {error}") from error
        if not isinstance(turns, list) or not all(
            isinstance(turn, dict) and isinstance(turn.get("role"), str) and isinstance(turn.get("content"), str)
            for turn in turns
        ):
            raise InvalidRequestError(f"{path} holds no conversation: a list of turns with role and content")
        self._start = [turn for turn in turns[:1] if turn["role"] == "system"]
        self.turns = turns
        print(f"({len(turns)} turns)")

    def _switch_stats(self, _: str) -> None:
        self._stats = not self._stats
        print(f"(figures are {'on' if self._stats else 'off'})")


def _read_text() -> str:
    '''Return what is typed: a line, or the lines between """ and """.'''
    line = input("> ").strip()
    if not line.startswith(_QUOTES):
        return line
    lines = [line.removeprefix(_QUOTES)]
    while not lines[-1].rstrip().endswith(_QUOTES):
        lines.append(input(". "))
    lines[-1] = lines[-1].rstrip().removesuffix(_QUOTES)
    return "\n".join(lines).strip("\n")
