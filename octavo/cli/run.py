"""`octavo run PROMPT`: one answer, printed as it comes."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import time
from collections.abc import Sequence

from octavo.base.errors import ConfigError
from octavo.base.logging import quiet
from octavo.cli.voices import Turn, add_voice_flags, open_voice, wishes_of
from octavo.config.flags import FlagParser, add_engine_flags


def main(arguments: Sequence[str]) -> int:
    """Print the answer; return the exit status."""
    parser = FlagParser(prog="octavo run", description="Answer one prompt and print the answer as it comes.")
    parser.add_argument("prompt", nargs="?", default="-", help="the prompt; - or nothing reads it from standard input")
    parser.add_argument("--raw", action="store_true", help="continue the text as it is, without the chat template")
    add_voice_flags(parser, temperature=0.0)
    add_engine_flags(parser)
    parsed = parser.parse_args(arguments)
    quiet()
    if parsed.prompt == "-" and sys.stdin.isatty():
        parser.error("a prompt is needed, or text on standard input")
    prompt = sys.stdin.read() if parsed.prompt == "-" else parsed.prompt
    if not prompt:
        raise ConfigError("the prompt is empty")
    if parsed.raw and parsed.system:
        raise ConfigError("a raw text has no system prompt", field="system")
    asyncio.run(_run(parsed, prompt))
    return 0


async def _run(parsed: argparse.Namespace, prompt: str) -> None:
    wishes = wishes_of(parsed)
    voice = await open_voice(parsed)
    began, num_tokens = time.perf_counter(), 0
    try:
        turns: list[Turn] = [{"role": "system", "content": parsed.system}] if parsed.system else []
        turns.append({"role": "user", "content": prompt})
        answer = voice.complete(prompt, wishes) if parsed.raw else voice.answer(turns, wishes)
        async with contextlib.aclosing(answer) as pieces:
            async for piece in pieces:
                num_tokens = piece.num_tokens or num_tokens
                print(piece.text, end="", flush=True)
        print()
    finally:
        await voice.close()
    if parsed.stats:
        seconds = time.perf_counter() - began
        print(f"[{num_tokens} tokens in {seconds:.2f} s, {num_tokens / seconds:.1f} tokens/s]", file=sys.stderr)
