"""`octavo batch IN OUT`: a file of requests in OpenAI's batch format; each line is answered as the server would answer it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import sys
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec

from octavo import launch
from octavo.base.errors import ConfigError, InvalidRequestError, OctavoError
from octavo.cli.batch_files import BatchOutput, count_lines, custom_id_of, read_asked, read_lines
from octavo.cli.own_server import client_of
from octavo.config.engine import EngineConfig
from octavo.config.flags import FlagParser, add_engine_flags, add_serve_flags, engine_config, serve_config
from octavo.config.serve import ServeConfig
from octavo.frontend.server.app import create_app

# Answers of a server that may be better in a moment, and how often and how long one waits for that.
_PASSING = (429, 502, 503, 504)
_NUM_TRIES = 5
_FIRST_WAIT_SECONDS = 1.0
_REPORT_SECONDS = 30.0
# Of the server's settings only these are about answers.
_SERVE_FLAGS = ("served_model_name", "max_logprobs", "max_body_bytes")


def main(arguments: Sequence[str]) -> int:
    """Answer every line that has no answer yet; return the exit status, 0 when every line has its answer or its error."""
    parser = FlagParser(
        prog="octavo batch", description="Answer a JSONL file of requests. Goes on where an earlier run was stopped."
    )
    parser.add_argument("input", metavar="IN", help="file of lines {custom_id, method, url, body}")
    parser.add_argument(
        "output", metavar="OUT", help="file for the answers; what it answers already is not asked again"
    )
    parser.add_argument("--url", help="ask a running server instead, for example http://127.0.0.1:8000")
    parser.add_argument("--concurrency", type=int, help="requests under way at once (default: twice --max-num-seqs)")
    add_engine_flags(parser)
    add_serve_flags(parser, _SERVE_FLAGS)
    parsed = parser.parse_args(arguments)
    engine, server = engine_config(parsed), serve_config(parsed)
    concurrency = 2 * engine.schedule.max_num_seqs if parsed.concurrency is None else parsed.concurrency
    if concurrency < 1:
        raise ConfigError(f"concurrency must be at least 1, not {concurrency}", field="concurrency")
    source, target = checked_paths(parsed.input, parsed.output)
    output = BatchOutput(target)
    try:
        lines = (line for line in read_lines(source, server.max_body_bytes) if not output.has(*line))
        first = next(lines, None)
        if first is None:
            print(f"nothing is left to do: {target} answers every line of {source}", file=sys.stderr)
            return 0
        batch = Batch(output, count_lines(source), num_tries=_NUM_TRIES if parsed.url else 1)
        limits = httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
        patient = httpx.Timeout(10.0, read=None, pool=None)
        there = client_of(parsed.url, limits=limits, timeout=patient) if parsed.url else _own_server(engine, server)
        asyncio.run(_run(batch, itertools.chain([first], lines), there, concurrency))
    finally:
        output.close()
    print(batch.summary(), file=sys.stderr)
    return 0


def checked_paths(source: str, target: str) -> tuple[Path, Path]:
    """Return both paths; raises ConfigError if there is no input, or both are one file."""
    read, written = Path(source), Path(target)
    if not read.is_file():
        raise ConfigError(f"there is no file {source}")
    if written.is_dir() or not written.absolute().parent.is_dir():
        raise ConfigError(f"{target} is a folder, or lies in none")
    if written.exists() and written.samefile(read):
        raise ConfigError("the answers cannot go into the file of the requests")
    return read, written


_Line = tuple[int, bytes | None]


async def _run(
    batch: Batch, lines: Iterator[_Line], server: AbstractAsyncContextManager[httpx.AsyncClient], concurrency: int
) -> None:
    async with server as http:
        await batch.answer(lines, http, concurrency)


@contextlib.asynccontextmanager
async def _own_server(engine: EngineConfig, server: ServeConfig) -> AsyncGenerator[httpx.AsyncClient]:
    """Start an engine and yield a client of its routes, which are called in this process."""
    service = await launch.start_service(engine, max_logprobs=server.max_logprobs)
    try:
        app = create_app(service, server, model=engine.model.model)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with client_of("http://batch", transport=transport, timeout=None) as http:
            yield http
    finally:
        await service.close()


@dataclass(slots=True, kw_only=True)
class Counts:
    """What this run has done."""

    lines: int = 0
    errors: int = 0
    tokens: int = 0
    first_error: str = ""


class Batch:
    """One run over the lines that are left. total: lines of the whole input, for the progress bar.

    num_tries: how often a server that is busy or away is asked before the run ends.
    """

    def __init__(self, output: BatchOutput, total: int, *, num_tries: int = 1) -> None:
        self.counts = Counts()
        self._output = output
        self._total = total
        self._num_tries = num_tries
        self._began = self._reported = time.perf_counter()

    async def answer(self, lines: Iterator[_Line], http: httpx.AsyncClient, concurrency: int) -> None:
        """Answer all lines, `concurrency` at a time. Raises what stops the whole batch; what is written stays."""
        from tqdm.auto import tqdm

        self._began = self._reported = time.perf_counter()
        with tqdm(total=self._total, initial=self._output.num_done, desc="Lines", disable=None) as bar:

            async def work() -> None:
                for number, line in lines:
                    await self._answer_line(number, line, http)
                    bar.set_postfix_str(self._speed(), refresh=False)
                    bar.update(1)
                    if bar.disable:
                        self._report()

            workers = [asyncio.create_task(work()) for _ in range(concurrency)]
            try:
                done, _ = await asyncio.wait(workers, return_when=asyncio.FIRST_EXCEPTION)
                for worker in done:
                    worker.result()
            finally:
                for worker in workers:
                    worker.cancel()
                await asyncio.gather(*workers, return_exceptions=True)

    def summary(self) -> str:
        """Return what was done, and the first error that there was."""
        counts, seconds = self.counts, time.perf_counter() - self._began
        done = f"{counts.lines} lines, {counts.errors} of them errors, in {seconds:.1f} s ({self._speed()})"
        return done + (f"\nthe first error: {counts.first_error}" if counts.errors else "")

    def _report(self) -> None:
        """Say how far it is now and then, where there is no terminal for a bar."""
        now = time.perf_counter()
        if now - self._reported >= _REPORT_SECONDS:
            self._reported = now
            done = self._output.num_done + self.counts.lines
            print(f"{done} of {self._total} lines, {self.counts.errors} errors, {self._speed()}", file=sys.stderr)

    def _speed(self) -> str:
        seconds = max(time.perf_counter() - self._began, 1e-9)
        return f"{self.counts.lines / seconds:.1f} lines/s, {self.counts.tokens / seconds:.0f} output tokens/s"

    async def _answer_line(self, number: int, line: bytes | None, http: httpx.AsyncClient) -> None:
        custom_id = None if line is None else custom_id_of(line)
        try:
            if line is None:
                raise InvalidRequestError("the line is longer than --max-body-bytes")
            asked = read_asked(line)
            body = bytes(asked.body)
            if _streams(body):
                raise InvalidRequestError("a batch cannot stream: leave out stream", field="stream")
        except InvalidRequestError as error:
            self._fail(number, custom_id, None, "invalid_line", error.message)
            return
        answer = await _post(http, asked.url, body, self._num_tries)
        text, code, message = _read_answer(answer)
        response = {"status_code": answer.status_code, "request_id": text.get("id"), "body": text}
        if message is not None:
            self._fail(number, custom_id, response, code, message)
            return
        self.counts.lines += 1
        self.counts.tokens += (text.get("usage") or {}).get("completion_tokens") or 0
        self._output.write(number, custom_id, response, None)

    def _fail(self, number: int, custom_id: str | None, response: Any, code: str | None, message: str) -> None:
        self.counts.lines += 1
        self.counts.errors += 1
        self.counts.first_error = self.counts.first_error or f"line {number}: {message}"
        self._output.write(number, custom_id, response, {"code": code, "message": message})


def _streams(body: bytes) -> bool:
    """Whether a body asks for a stream; one that is no object is the route's to refuse."""
    try:
        return bool(msgspec.json.decode(body, type=dict[str, Any]).get("stream"))
    except msgspec.ValidationError:
        return False


async def _post(http: httpx.AsyncClient, url: str, body: bytes, num_tries: int) -> httpx.Response:
    """Return the answer; waits for a server that is busy or away, and raises OctavoError if it does not come back."""
    headers = {"Content-Type": "application/json"}
    trouble = ""
    for attempt in range(num_tries):
        if attempt:
            await asyncio.sleep(_FIRST_WAIT_SECONDS * 2 ** (attempt - 1))
        try:
            response = await http.post(url, content=body, headers=headers)
        except httpx.TransportError as error:
            trouble = f"the server does not answer: {error or type(error).__name__}"
            continue
        if response.status_code not in _PASSING:
            return response
        trouble = f"the server answers with status {response.status_code}: {_read_answer(response)[2]}"
    raise OctavoError(f"{trouble}; the same command goes on from here")


def _read_answer(response: httpx.Response) -> tuple[dict[str, Any], str | None, str | None]:
    """Return the body as an object, and for anything but success its error's code and message."""
    try:
        body: Any = json.loads(response.content)
    except ValueError:
        body = None
    if not isinstance(body, dict):
        body = {"text": response.text}
    if response.status_code == 200:
        return body, None, None
    error = body.get("error")
    error = error if isinstance(error, dict) else {}
    return (
        body,
        error.get("code") or error.get("type") or str(response.status_code),
        error.get("message") or "no reason given",
    )
