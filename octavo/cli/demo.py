"""`octavo demo`: a server on the embedded model, one question through HTTP, an orderly end. Also a first test of a machine."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Sequence

from octavo.base.errors import OctavoError
from octavo.cli.own_server import OwnServer
from octavo.cli.voices import HttpVoice, Wishes
from octavo.config.flags import FlagParser, add_engine_flags, command_line, given_options

_QUESTION = "What is a book? Answer in two sentences."
_MAX_TOKENS = 96


def main(arguments: Sequence[str]) -> int:
    """Run the demo; return 0 if the model answered and the server ended in order."""
    parser = FlagParser(prog="octavo demo", description="Serve the embedded model, ask it one question, stop it.")
    parser.add_argument("--question", default=_QUESTION, help="what to ask (default: %(default)s)")
    add_engine_flags(parser)
    parsed = parser.parse_args(arguments)
    return run_demo(parsed.question, command_line(given_options(parsed)))


def run_demo(question: str, flags: Sequence[str]) -> int:
    """Start a server with these flags, ask and stop it; return the exit status."""
    with OwnServer(flags) as server:
        print("$ " + " ".join(server.command), flush=True)
        try:
            asyncio.run(_ask(server, question))
        except OctavoError as error:
            print(f"octavo demo: error: {error.message}", file=sys.stderr)
            return 1
    print(f"[server stopped with status {server.status}]")
    return 0 if server.status == 0 else 1


async def _ask(server: OwnServer, question: str) -> None:
    print(f"[ready in {await server.ready():.1f} s at {server.url}]\n\n> {question}\n", flush=True)
    voice = HttpVoice(server.url)
    asked = time.perf_counter()
    first = 0.0
    answer, num_tokens = "", 0
    wishes = Wishes(max_tokens=_MAX_TOKENS, temperature=0.0)
    turns = [{"role": "user", "content": question}]
    async with contextlib.aclosing(voice.answer(turns, wishes)) as pieces:
        async for piece in pieces:
            first = first or time.perf_counter() - asked
            answer += piece.text
            num_tokens = piece.num_tokens or num_tokens
            print(piece.text, end="", flush=True)
    seconds = time.perf_counter() - asked
    await voice.close()
    if not answer.strip():
        raise OctavoError("the model gave no answer")
    rate = num_tokens / seconds
    print(
        f"\n\n[first text after {first:.2f} s; {num_tokens} tokens in {seconds:.1f} s, {rate:.1f} tokens/s]", flush=True
    )
