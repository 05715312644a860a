"""`octavo chat`: a conversation in the terminal."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import sys
from collections.abc import Sequence

from octavo.base.errors import OctavoError
from octavo.cli.voices import EngineVoice, HttpVoice, Turn, Voice, Wishes
from octavo.config.flags import FlagParser, add_engine_flags, add_model, engine_config, given_options

_HELP = "/reset forgets the conversation, /quit leaves (so does Ctrl-D), Ctrl-C stops an answer"


def main(arguments: Sequence[str]) -> int:
    """Talk until /quit; return the exit status."""
    parser = FlagParser(prog="octavo chat", description="Talk to a model in the terminal.")
    add_model(parser)
    parser.add_argument("--url", help="talk to a running server instead, for example http://127.0.0.1:8000")
    parser.add_argument("--system", help="instruction that stands before the conversation")
    parser.add_argument("--max-tokens", type=int, help="longest answer in tokens (default: to the end of the context)")
    parser.add_argument("--temperature", type=float, default=0.7, help="0 always takes the likeliest (default 0.7)")
    add_engine_flags(parser)
    parsed = parser.parse_args(arguments)
    wishes = Wishes(max_tokens=parsed.max_tokens, temperature=parsed.temperature)
    with asyncio.Runner() as runner:
        voice: Voice
        if parsed.url is None:
            voice = runner.run(EngineVoice.start(engine_config(parsed)))
        else:
            voice = HttpVoice(parsed.url, given_options(parsed).get("model"))
        try:
            return Conversation(runner, voice, wishes, parsed.system).talk()
        finally:
            runner.run(voice.close())


class Conversation:
    """The turns so far, and the loop that adds to them."""

    def __init__(self, runner: asyncio.Runner, voice: Voice, wishes: Wishes, system: str | None) -> None:
        self._runner = runner
        self._voice = voice
        self._wishes = wishes
        self._start: list[Turn] = [{"role": "system", "content": system}] if system else []
        self.turns: list[Turn] = list(self._start)

    def talk(self) -> int:
        """Read and answer until the end; return the exit status."""
        with contextlib.suppress(ImportError):
            importlib.import_module("readline")  # line editing and history for input()
        print(_HELP)
        while True:
            try:
                line = input("> ").strip()
            except EOFError:
                print()
                return 0
            except KeyboardInterrupt:
                print("\n(/quit or Ctrl-D leaves)")
                continue
            if line == "/quit":
                return 0
            self.take(line)

    def take(self, line: str) -> None:
        """Do what one line asks for: a command, or an answer."""
        if line == "/reset":
            self.turns = list(self._start)
            print("(a new conversation)")
        elif line.startswith("/"):
            print(_HELP)
        elif line:
            self._answer(line)

    def _answer(self, question: str) -> None:
        asked: Turn = {"role": "user", "content": question}
        texts: list[str] = []
        try:
            self._runner.run(self._print_answer([*self.turns, asked], texts))
        except KeyboardInterrupt:
            print(" (stopped)")
        except OctavoError as error:
            print(f"error: {error.message}", file=sys.stderr)
        else:
            print()
        if texts:
            self.turns += [asked, {"role": "assistant", "content": "".join(texts)}]

    async def _print_answer(self, turns: list[Turn], texts: list[str]) -> None:
        async with contextlib.aclosing(self._voice.answer(turns, self._wishes)) as pieces:  # pyright: ignore[reportArgumentType]
            async for piece in pieces:
                texts.append(piece.text)
                print(piece.text, end="", flush=True)
