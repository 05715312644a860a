"""A real server on a free loopback port, and the greedy texts that it answers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import httpx
import openai

from octavo.frontend.text.tokenizer import Tokenizer
from tests.real.make_oracle import NUM_TOKENS
from tests.real.oracle import Answer


def free_port() -> int:
    """Return a loopback port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def serving(*flags: str, model: str = "demo") -> Iterator[str]:
    """Yield the URL of `octavo serve`; it must end in order."""
    port = free_port()
    command = [sys.executable, "-m", "octavo.cli.main", "serve", model, "--port", str(port), *flags]
    server = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})  # noqa: TID251
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: healthy(url), 120)
        yield url
    finally:
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0


def healthy(url: str) -> bool:
    """Return whether the server answers that it is well."""
    try:
        return httpx.get(url + "/health", timeout=2).status_code == 200
    except httpx.TransportError:
        return False


def wait_until(holds, seconds: float) -> None:
    """Wait until something holds; fail when time is up."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not come true in time"
        time.sleep(0.05)


def served_texts(url: str, model: str, answers: list[Answer], *, stream: bool) -> list[str]:
    """Return the greedy text for the prompt of each answer, all asked at once."""

    async def one(client: openai.AsyncOpenAI, ids: list[int]) -> str:
        asked = await client.completions.create(
            model=model,
            prompt=ids,
            max_tokens=NUM_TOKENS,
            temperature=0,
            stream=stream,
            extra_body={"ignore_eos": True, "skip_special_tokens": False},
        )
        if not stream:
            return asked.choices[0].text
        return "".join([chunk.choices[0].text async for chunk in asked if chunk.choices])

    async def everybody() -> list[str]:
        async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=900) as client:
            return await asyncio.gather(*[one(client, each.prompt_ids) for each in answers])

    return asyncio.run(everybody())


def check_texts(texts: list[str], tokenizer: Tokenizer, answers: list[Answer]) -> None:
    """Assert that texts are the oracle's tokens up to its first tie."""
    for text, each in zip(texts, answers, strict=True):
        certain = tokenizer.decode(each.tokens[: each.num_certain], skip_special_tokens=False).rstrip("\ufffd")
        assert text.startswith(certain)
