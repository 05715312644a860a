"""`octavo demo`: a server on the embedded model, one question through HTTP, an orderly end. Also a first test of a machine."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

import httpx

from octavo.base.errors import EngineDeadError, OctavoError
from octavo.cli.voices import HttpVoice, Wishes
from octavo.config.flags import FlagParser, add_engine_flags, command_line, given_options

_QUESTION = "What is a book? Answer in two sentences."
_MAX_TOKENS = 96
_READY_SECONDS = 180.0
_STOP_SECONDS = 30.0


def main(arguments: Sequence[str]) -> int:
    """Run the demo; return 0 if the model answered and the server ended in order."""
    parser = FlagParser(prog="octavo demo", description="Serve the embedded model, ask it one question, stop it.")
    parser.add_argument("--question", default=_QUESTION, help="what to ask (default: %(default)s)")
    add_engine_flags(parser)
    parsed = parser.parse_args(arguments)
    return run_demo(parsed.question, command_line(given_options(parsed)))


def run_demo(question: str, flags: Sequence[str]) -> int:
    """Start a server with these flags, ask and stop it; return the exit status."""
    port = _free_port()
    command = [sys.executable, "-m", "octavo.cli.main", "serve", "--host", "127.0.0.1", "--port", str(port), *flags]
    print("$ octavo " + " ".join(command[3:]), flush=True)
    began = time.perf_counter()
    server = subprocess.Popen(command)
    try:
        asyncio.run(_ask(server, f"http://127.0.0.1:{port}", question, began))
    except OctavoError as error:
        print(f"octavo demo: error: {error.message}", file=sys.stderr)
        return 1
    finally:
        status = _stop(server)
    print(f"[server stopped with status {status}]")
    return 0 if status == 0 else 1


async def _ask(server: subprocess.Popen[bytes], url: str, question: str, began: float) -> None:
    await _wait_ready(server, url)
    print(f"[ready in {time.perf_counter() - began:.1f} s at {url}]\n\n> {question}\n", flush=True)
    voice = HttpVoice(url)
    asked = time.perf_counter()
    first = 0.0
    answer, num_tokens = "", 0
    wishes = Wishes(max_tokens=_MAX_TOKENS, temperature=0.0)
    turns = [{"role": "user", "content": question}]
    async with contextlib.aclosing(voice.answer(turns, wishes)) as pieces:  # pyright: ignore[reportArgumentType]
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


async def _wait_ready(server: subprocess.Popen[bytes], url: str) -> None:
    """Wait until the server answers; raises EngineDeadError if it ends, or takes too long."""
    end = time.perf_counter() + _READY_SECONDS
    async with httpx.AsyncClient(timeout=5.0) as http:
        while time.perf_counter() < end:
            if server.poll() is not None:
                raise EngineDeadError(f"the server ended with status {server.returncode} before it was ready")
            with contextlib.suppress(httpx.TransportError):
                if (await http.get(f"{url}/health")).status_code == 200:
                    return
            await asyncio.sleep(0.05)
    raise EngineDeadError(f"the server was not ready after {_READY_SECONDS:g} seconds")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _stop(server: subprocess.Popen[bytes]) -> int:
    """End the server in order, or by force if it does not listen; return its status."""
    if server.poll() is None:
        server.send_signal(signal.SIGTERM)
    try:
        return server.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
        return server.wait()
