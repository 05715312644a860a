"""`octavo run PROMPT`: one answer, printed as it comes."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Sequence

from octavo.cli.voices import EngineVoice, Wishes
from octavo.config.engine import EngineConfig
from octavo.config.flags import FlagParser, add_engine_flags, engine_config


def main(arguments: Sequence[str]) -> int:
    """Print the answer; return the exit status."""
    parser = FlagParser(prog="octavo run", description="Answer one prompt and print the answer as it comes.")
    parser.add_argument("prompt", help="the prompt, or - to read it from standard input")
    parser.add_argument("--raw", action="store_true", help="continue the text as it is, without the chat template")
    parser.add_argument("--max-tokens", type=int, help="longest answer in tokens (default: to the end of the context)")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 always takes the likeliest (default 0)")
    add_engine_flags(parser)
    parsed = parser.parse_args(arguments)
    prompt = sys.stdin.read() if parsed.prompt == "-" else parsed.prompt
    wishes = Wishes(max_tokens=parsed.max_tokens, temperature=parsed.temperature)
    asyncio.run(_run(engine_config(parsed), prompt, wishes, raw=parsed.raw))
    return 0


async def _run(config: EngineConfig, prompt: str, wishes: Wishes, *, raw: bool) -> None:
    voice = await EngineVoice.start(config)
    try:
        turns = [{"role": "user", "content": prompt}]
        answer = voice.complete(prompt, wishes) if raw else voice.answer(turns, wishes)
        async with contextlib.aclosing(answer) as pieces:  # pyright: ignore[reportArgumentType]
            async for piece in pieces:
                print(piece.text, end="", flush=True)
        print()
    finally:
        await voice.close()
