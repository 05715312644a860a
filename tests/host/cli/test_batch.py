"""`octavo batch`: answers as the server's, errors line by line, and runs that were stopped, by kill -9 too."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from octavo.base.errors import ConfigError, OctavoError
from octavo.cli import batch as command
from octavo.cli.batch import Batch, checked_paths
from octavo.cli.batch_files import BatchOutput, count_lines, read_lines
from octavo.cli.own_server import client_of
from octavo.config.serve import ServeConfig
from tests.server.fake_service import FakeService, answer_text
from tests.server.harness import client

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def line(custom_id: Any, url: str = TEXT, **body: Any) -> str:
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": {"prompt": "Hi", **body}})


def answer(source: Path, target: Path, service: FakeService, concurrency: int = 4) -> Batch:
    """Run a batch over the real routes and the fake service."""

    async def run() -> Batch:
        output = BatchOutput(target)
        batch = Batch(output, count_lines(source))
        try:
            left = (one for one in read_lines(source, 4096) if not output.has(*one))
            async with client(service, ServeConfig()) as http:
                await batch.answer(left, http, concurrency)
        finally:
            output.close()
        return batch

    return asyncio.run(asyncio.wait_for(run(), 60))


def records(target: Path) -> dict[int, dict[str, Any]]:
    """Return line number -> answer, and see that there is one answer a line."""
    found = [json.loads(text) for text in target.read_text().splitlines()]
    numbered = {int(one["id"].removeprefix("batch-")): one for one in found}
    assert len(numbered) == len(found)
    return numbered


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "in.jsonl", tmp_path / "out.jsonl"


def test_every_line_has_its_answer_or_its_error(files: tuple[Path, Path]) -> None:
    source, target = files
    chat = json.dumps({"custom_id": "c", "method": "POST", "url": CHAT,
                       "body": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}})  # fmt: skip
    lines = [
        line("a", max_tokens=2), chat, "", '{"custom_id": "broken', line("d", top_p=7), line("e", stream=True),
        line("f", url="/v1/nothing"), line("g", url="/reset_prefix_cache"), json.dumps({"url": TEXT, "body": {}}),
        line("h").replace("POST", "GET"), line("i", model="other"), line("j", prompt="x" * 9000), line(7),
        '{"custom_id":"k","url":"/v1/completions","body":[]}', line("l", max_tokens=1),
    ]  # fmt: skip
    source.write_text("\n".join(lines))
    service = FakeService()
    batch = answer(source, target, service)
    found = records(target)
    assert sorted(found) == [1, 2, *range(4, 16)]
    good = {number: one for number, one in found.items() if one["error"] is None}
    assert {number: one["custom_id"] for number, one in good.items()} == {1: "a", 2: "c", 15: "l"}
    assert good[1]["response"]["status_code"] == 200
    assert good[1]["response"]["body"]["choices"][0]["text"] == answer_text(0, 2)
    assert good[1]["response"]["request_id"] == good[1]["response"]["body"]["id"]
    assert good[2]["response"]["body"]["choices"][0]["message"]["content"] == answer_text(0, 3)
    codes = {number: one["error"]["code"] for number, one in found.items() if one["error"]}
    assert codes == {4: "invalid_line", 5: "invalid_request_error", 6: "invalid_line", 7: "not_found_error",
                     8: "invalid_line", 9: "invalid_line", 10: "invalid_line", 11: "model_not_found",
                     12: "invalid_line", 13: "invalid_line", 14: "invalid_request_error"}  # fmt: skip
    assert found[5]["response"]["body"]["error"]["param"] == "top_p"
    assert found[5]["error"]["message"] == found[5]["response"]["body"]["error"]["message"]
    assert found[4]["response"] is None
    assert found[12]["error"]["message"] == "the line is longer than --max-body-bytes"
    assert found[6]["custom_id"] == "e"
    assert (batch.counts.lines, batch.counts.errors, batch.counts.tokens) == (14, 11, 6)
    assert service.num_resets == 0
    done, first = batch.summary().splitlines()
    assert done.startswith("14 lines, 11 of them errors, in ")
    # Whichever of the lines under way was answered first.
    assert first.startswith("the first error: line ")


def test_a_stopped_run_goes_on_where_it_was(files: tuple[Path, Path]) -> None:
    source, target = files
    source.write_text("\n".join(line(f"r{number}", max_tokens=1) for number in range(1, 41)))
    answer(source, target, FakeService(), concurrency=1)
    whole = target.read_bytes()
    kept = whole.splitlines(keepends=True)
    # Torn in the middle of the eleventh line, as kill -9 may leave it.
    target.write_bytes(b"".join(kept[:10]) + kept[10][:25])
    service = FakeService()
    answer(source, target, service)
    assert target.read_bytes().startswith(b"".join(kept[:10]))
    assert len(service.requests) == 30
    assert {number: one["custom_id"] for number, one in records(target).items()} == {n: f"r{n}" for n in range(1, 41)}
    again = FakeService()
    answer(source, target, again)
    assert (again.requests, len(records(target))) == ([], 40)


def test_without_a_terminal_it_says_now_and_then_how_far_it_is(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "_REPORT_SECONDS", 0.0)
    source, target = files
    source.write_text(line("a", max_tokens=1) + "\n" + line("b", top_p=7) + "\n")
    answer(source, target, FakeService(), concurrency=1)
    shown = capsys.readouterr().err.splitlines()
    assert [text.split(" errors")[0] for text in shown] == ["1 of 2 lines, 0", "2 of 2 lines, 1"]


def test_an_engine_that_dies_stops_the_run_and_loses_nothing(files: tuple[Path, Path]) -> None:
    source, target = files
    source.write_text("\n".join(line(f"r{number}", max_tokens=1) for number in range(1, 21)))
    service = FakeService()
    generate = service.generate

    async def mortal(prompt: Any, params: Any, **options: Any) -> Any:
        service.dead = len(service.requests) >= 5
        return await generate(prompt, params, **options)

    service.generate = mortal  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(OctavoError, match="status 503: the engine is dead; the same command goes on from here"):
        answer(source, target, service, concurrency=2)
    assert 1 <= len(records(target)) <= 5
    answer(source, target, FakeService())
    assert sorted(records(target)) == list(range(1, 21))


def test_an_output_of_something_else_is_left_alone(files: tuple[Path, Path]) -> None:
    source, target = files
    source.write_text(line("a") + "\n" + line("b"))
    target.write_text("a letter to my aunt\n")
    with pytest.raises(OctavoError, match="is no output of a batch"):
        answer(source, target, FakeService())
    assert target.read_text() == "a letter to my aunt\n"
    target.unlink()
    answer(source, target, FakeService())
    source.write_text(line("a") + "\n" + line("another"))
    with pytest.raises(OctavoError, match="holds the answers to another file: see line 2"):
        answer(source, target, FakeService())


def test_two_runs_do_not_share_an_output(files: tuple[Path, Path]) -> None:
    first = BatchOutput(files[1])
    with pytest.raises(OctavoError, match="another run writes to"):
        BatchOutput(files[1])
    first.close()
    BatchOutput(files[1]).close()


def test_paths_are_checked(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    source, target = files
    with pytest.raises(ConfigError, match="there is no file"):
        checked_paths(str(source), str(target))
    source.write_text("")
    with pytest.raises(ConfigError, match="cannot go into the file of the requests"):
        checked_paths(str(source), str(source))
    with pytest.raises(ConfigError, match="is a folder, or lies in none"):
        checked_paths(str(source), str(target / "deeper"))
    assert checked_paths(str(source), str(target)) == (source, target)
    # An empty file needs no engine.
    assert command.main([str(source), str(target)]) == 0
    assert "nothing is left to do" in capsys.readouterr().err


def test_a_busy_server_is_asked_again(files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_FIRST_WAIT_SECONDS", 0.001)
    monkeypatch.setenv("OCTAVO_API_KEY", "secret")
    source, target = files
    source.write_text(line("a") + "\n")
    asked: list[str] = []

    def handler(request: httpx.Request) -> httpx.Response:
        asked.append(request.headers["Authorization"])
        if len(asked) == 1:
            raise httpx.ConnectError("refused")
        if len(asked) == 2:
            return httpx.Response(429, json={"error": {"message": "full"}})
        return httpx.Response(404, text="<html>no such page</html>")

    async def run() -> None:
        output = BatchOutput(target)
        async with client_of("http://far/v1", transport=httpx.MockTransport(handler)) as http:
            await Batch(output, 1, num_tries=5).answer(read_lines(source, 4096), http, 1)
        output.close()

    asyncio.run(run())
    assert asked == ["Bearer secret"] * 3
    only = records(target)[1]
    assert only["response"]["body"] == {"text": "<html>no such page</html>"}
    assert only["error"] == {"code": "404", "message": "no reason given"}


def _start(source: Path, target: Path, step: str) -> subprocess.Popen[str]:
    command_line = [sys.executable, "-m", "tests.host.cli.serve_batch", str(source), str(target), step]
    return subprocess.Popen(command_line, stdout=subprocess.PIPE, text=True)


def test_killed_in_the_middle_and_resumed_in_flat_memory(files: tuple[Path, Path]) -> None:
    source, target = files
    total = 2400
    with source.open("w") as file:
        for number in range(1, total + 1):
            file.write(line(f"r{number}", prompt=f"line {number}: " + "x" * 300, max_tokens=5) + "\n")
    killed = _start(source, target, "0.005")
    end = time.monotonic() + 60
    while not target.exists() or count_lines(target) < 400:
        assert time.monotonic() < end
        assert killed.poll() is None
        time.sleep(0.01)
    killed.kill()
    killed.communicate()
    written = count_lines(target)
    assert 400 <= written < total
    resumed = _start(source, target, "0.001")
    quarter, last = map(int, resumed.communicate(timeout=120)[0].split())
    assert resumed.returncode == 0
    found = records(target)
    assert {number: one["custom_id"] for number, one in found.items()} == {n: f"r{n}" for n in range(1, total + 1)}
    texts = {one["response"]["body"]["choices"][0]["text"] for one in found.values()}
    assert texts == {"line "}
    # A kilobyte kept of each line would be a megabyte and a half.
    assert last - quarter < 1500, "memory grows with the number of lines"
