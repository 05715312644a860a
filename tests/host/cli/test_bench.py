"""`octavo bench`: the same work as everybody's, arrivals, figures, and runs against the real routes and a real engine."""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import itertools
import json
import random
import statistics
from pathlib import Path
from typing import Any

import httpx
import pytest

from octavo.base.errors import ConfigError
from octavo.cli import bench
from octavo.cli.bench import serve
from octavo.cli.bench.figures import (
    Measured,
    checked_goodput,
    checked_percentiles,
    percentile,
    running_at_starts,
    summarize,
    tokens_by_second,
)
from octavo.cli.bench.plot import draw
from octavo.cli.bench.work import Job, add_work_flags, arrivals, make_jobs, shape_jobs
from octavo.config.serve import ServeConfig
from tests.server.fake_service import FakeService
from tests.server.harness import loopback, run

# What the program that measures the peers runs, by the hash of its JSON: requests, tokens in and out.
PEERS = {
    ("gpu", "single"): (1, 128, 512, "c2efbccfc02bdead"),
    ("gpu", "small"): (8, 2048, 2048, "faba202711b854d7"),
    ("gpu", "mix"): (256, 141474, 145609, "e8c19033f9480974"),
    ("gpu", "burst"): (1024, 524288, 131072, "a89296a3b625a7d5"),
    ("gpu", "prefill"): (1, 32000, 1, "ae5bb1ce5122fe60"),
    ("gpu", "prefix"): (128, 532480, 8192, "a33f6d26c1229fdb"),
    ("cpu", "single"): (1, 128, 128, "03d8da71128c0500"),
    ("cpu", "small"): (8, 2048, 512, "bb143325ce94d316"),
    ("cpu", "mix"): (16, 7902, 10163, "476a5f1de54df1bd"),
    ("cpu", "burst"): (64, 32768, 8192, "e2a983698d988d22"),
    ("cpu", "prefill"): (1, 4000, 1, "bf7daa3a08222ffb"),
    ("cpu", "prefix"): (8, 8704, 512, "22f3450d3a58cff5"),
}


@pytest.mark.parametrize(("scale", "name"), list(PEERS))
def test_shapes_are_the_work_of_the_peers(scale: str, name: str) -> None:
    jobs = shape_jobs(name, scale)
    written = json.dumps([[job.prompt, job.max_tokens] for job in jobs])
    digest = hashlib.sha256(written.encode()).hexdigest()[:16]
    found = len(jobs), sum(len(job.prompt) for job in jobs), sum(job.max_tokens for job in jobs), digest
    assert found == PEERS[scale, name]


def _jobs(*arguments: str, seed: int = 0) -> list[Job]:
    parser = argparse.ArgumentParser()
    add_work_flags(parser, "random")
    return make_jobs(parser.parse_args(arguments), seed)


def test_random_work() -> None:
    flags = ("--num-prompts", "50", "--random-input-len", "100", "--random-output-len", "10",
             "--random-range-ratio", "0.5", "--random-prefix-len", "7")  # fmt: skip
    jobs = _jobs(*flags)
    assert jobs == _jobs(*flags)
    assert jobs != _jobs(*flags, seed=1)
    lengths = [len(job.prompt) for job in jobs]
    assert (len(jobs), min(lengths) >= 57, max(lengths) <= 157, len(set(lengths)) > 20) == (50, True, True, True)
    assert len({tuple(job.prompt[:7]) for job in jobs}) == 1  # pyright: ignore[reportArgumentType]
    assert {5 <= job.max_tokens <= 15 for job in jobs} == {True}


def test_prompts_of_files(tmp_path: Path) -> None:
    custom = tmp_path / "custom.jsonl"
    rows: list[Any] = [
        {"prompt": "a", "output_tokens": 64}, {"turns": ["b", "c"]}, {"question": "d", "max_tokens": 3},
        {"messages": [{"role": "user", "content": "e"}]}, {"conversations": []},
        {"conversations": [{"from": "human", "value": "f"}, {"from": "gpt", "value": "g"}]},
    ]  # fmt: skip
    custom.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n")
    flags = ("--dataset-name", "custom", "--custom-output-len", "5", "--dataset-path")
    found = _jobs(*flags, str(custom))
    expected = [("a", 64), ("b", 5), ("d", 3), ([{"role": "user", "content": "e"}], 5), ("f", 5)]
    assert [(job.prompt, job.max_tokens) for job in found] == expected
    whole = tmp_path / "custom.json"
    whole.write_text(json.dumps(rows))
    assert _jobs(*flags, str(whole), "--num-prompts", "2") == found[:2]


def test_traces(tmp_path: Path) -> None:
    table = tmp_path / "trace.csv"
    table.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,480,10\n2023-11-16 18:17:05.4799600,34,0\n"
    )
    flags = ("--dataset-name", "timed_trace", "--dataset-path")
    first, second = _jobs(*flags, str(table))
    assert (len(first.prompt), first.max_tokens, first.at) == (480, 10, 0.0)
    assert (len(second.prompt), second.max_tokens, second.at) == (34, 1, 1.5)
    lines = tmp_path / "trace.jsonl"
    rows = [
        {"timestamp": 3000, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]},
        {"timestamp": 4500, "input_length": 600, "output_length": 6, "hash_ids": [0, 7]},
    ]
    lines.write_text("\n".join(map(json.dumps, rows)))
    first, second = _jobs(*flags, str(lines))
    assert (len(first.prompt), len(second.prompt), second.at) == (1100, 600, 1.5)
    assert first.prompt[:512] == second.prompt[:512]
    assert first.prompt[512:600] != second.prompt[512:]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--num-prompts", "0"], "num_prompts must be at least 1, not 0"),
        (["--random-range-ratio", "1.5"], "random_range_ratio must be between 0 and 1, not 1.5"),
        (["--random-output-len", "0"], "random_output_len must be at least 1"),
        (["--dataset-name", "custom"], "--dataset-name custom needs a file"),
        (["--dataset-name", "custom", "--dataset-path", "/nowhere"], "/nowhere cannot be read: FileNotFoundError"),
        (["--dataset-name", "timed_trace", "--dataset-path", __file__], "cannot be read: JSONDecodeError"),
        (["--dataset-name", "custom", "--dataset-path", "/dev/null"], "/dev/null holds no prompts"),
    ],
)
def test_work_that_cannot_be_made(arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _jobs(*arguments)


def test_arrivals() -> None:
    jobs = [Job(prompt="x", max_tokens=1, at=2.0 * number) for number in range(4000)]
    assert arrivals(jobs[:3], float("inf"), 1.0, 4.0, 0) == [0.0, 0.5, 1.0]
    for burstiness, spread in ((1.0, 1.0), (0.25, 2.0), (4.0, 0.5)):
        times = arrivals(jobs, 10.0, burstiness, 1.0, 3)
        gaps = [late - early for early, late in itertools.pairwise(times)]
        assert times[0] == 0
        assert statistics.fmean(gaps) == pytest.approx(0.1, rel=0.1)
        # The deviation of a gamma distribution is its mean by the root of its shape.
        assert statistics.pstdev(gaps) == pytest.approx(0.1 * spread, rel=0.1)


def test_percentiles_lie_between_the_nearest_values() -> None:
    values = [random.Random(0).random() for _ in range(101)]
    assert percentile(values, 50) == statistics.median(values)
    assert percentile([1.0, 2.0], 75) == 1.75
    assert (percentile([3.0, 1.0, 2.0], 0), percentile([3.0, 1.0, 2.0], 100)) == (1.0, 3.0)
    assert checked_percentiles("50,99.9") == (50.0, 99.9)
    for bad in ("", "101", "x", "nan"):
        with pytest.raises(ConfigError, match="numbers from 0 to 100"):
            checked_percentiles(bad)
    assert checked_goodput(["ttft:500", "e2el:2.5"]) == {"ttft": 500.0, "e2el": 2.5}
    for bad in ("ttft", "itl:3", "ttft:x"):
        with pytest.raises(ConfigError, match="goodput takes"):
            checked_goodput([bad])


def test_figures() -> None:
    first = Measured(start=10.0, tokens=[10.5, 10.75, 11.5], end=11.5, num_prompt=4, num_output=5)
    second = Measured(start=11.0, tokens=[12.0], end=12.0, num_prompt=6, num_output=1)
    broken = Measured(start=11.2, end=11.3, error="refused")
    found = summarize([first, second, broken], 4.0, (50.0,), {"ttft": 600.0})
    counts = {"num_prompts": 3, "completed": 2, "failed": 1, "total_input_tokens": 10, "total_output_tokens": 6}
    rates = {"duration": 4.0, "request_throughput": 0.5, "output_throughput": 1.5, "total_token_throughput": 4.0}
    assert {name: found[name] for name in counts | rates} == counts | rates
    assert found["request_goodput"] == 0.25
    assert (found["mean_ttft_ms"], found["p50_ttft_ms"], found["mean_e2el_ms"]) == (750.0, 750.0, 1250.0)
    assert (found["mean_tpot_ms"], found["std_tpot_ms"]) == (250.0, 0.0)
    assert (found["mean_itl_ms"], found["median_itl_ms"]) == (500.0, 500.0)
    assert tokens_by_second([first, second]) == [pytest.approx(10 / 3), pytest.approx(5 / 3), 1.0]
    assert found["max_output_tokens_per_s"] == pytest.approx(10 / 3)
    assert running_at_starts([first, second]) == [1, 2]
    assert summarize([broken], 1.0, (), {})["completed"] == 0


def test_a_picture_is_drawn(tmp_path: Path) -> None:
    requests = [Measured(start=0.0, tokens=[0.5, 1.0], end=1.0, num_output=2), Measured(start=0.2, end=0.4, error="x")]
    draw(str(tmp_path / "run.svg"), requests, "a run")
    assert "<svg" in (tmp_path / "run.svg").read_text()
    with pytest.raises(ConfigError, match="cannot draw into"):
        draw(str(tmp_path / "run.xyz"), requests, "a run")
    draw(None, requests, "nothing")


def _serve(url: str, tmp_path: Path, *flags: str) -> tuple[int, dict[str, Any]]:
    target = tmp_path / "out.json"
    status = serve.main(["--url", url, "--output-json", str(target), "--save-detailed", *flags])
    return status, json.loads(target.read_text())


def test_a_server_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    service = FakeService()
    service.delay = 0.01
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("\n".join(json.dumps({"prompt": "Hi", "output_tokens": 4}) for _ in range(6)))
    flags = ("--dataset-name", "custom", "--dataset-path", str(prompts))

    async def measure() -> list[tuple[int, dict[str, Any]]]:
        async with loopback(service, ServeConfig(served_model_name=("tiny",))) as url:
            plain = await asyncio.to_thread(
                _serve, url, tmp_path, *flags, "--max-concurrency", "2", "--num-warmups", "1"
            )
            rate = ("--request-rate", "100", "--goodput", "ttft:1000", "--ignore-eos", "--extra-body", '{"top_k": 3}')
            chat = await asyncio.to_thread(_serve, url + "/v1", tmp_path, *flags, *rate, "--backend", "openai-chat")
            service.fail_at = 1
            return [plain, chat, await asyncio.to_thread(_serve, url, tmp_path, *flags)]

    (ok, plain), (also, chat), (bad, broken) = run(measure())
    assert (ok, also, bad) == (0, 0, 1)
    assert (plain["model_id"], plain["completed"], plain["failed"], plain["total_output_tokens"]) == ("tiny", 6, 0, 24)
    assert plain["input_lens"] == [3] * 6
    assert plain["generated_texts"][0] == "Ein Oktav hat acht"
    assert plain["max_concurrent_requests"] == 2
    assert [len(gaps) for gaps in plain["itls"]] == [3] * 6
    assert plain["median_tpot_ms"] >= 9
    # Two at a time, four tokens of ten milliseconds each.
    assert plain["duration"] >= 0.12
    assert plain["median_e2el_ms"] >= plain["median_ttft_ms"] + 3 * 9
    assert (chat["completed"], chat["request_rate"], chat["total_output_tokens"]) == (6, 100.0, 24)
    assert chat["request_goodput"] == pytest.approx(chat["request_throughput"])
    params = service.requests[-7][1]
    assert (params.ignore_eos, params.top_k, params.temperature) == (True, 3, 0.0)
    assert (broken["completed"], broken["failed"]) == (0, 6)
    assert "the first error: the logits are not numbers" in capsys.readouterr().out


def test_what_the_server_refuses_is_counted_and_said() -> None:
    async def measure() -> Measured:
        transport = httpx.MockTransport(lambda _: httpx.Response(400, json={"error": {"message": "too long"}}))
        load = serve.Load(jobs=[], times=[], backend="openai", max_concurrency=None, extra={})
        async with httpx.AsyncClient(transport=transport, base_url="http://far") as http:
            return await serve.measure_one(http, "m", Job(prompt=[1], max_tokens=1), load)

    assert str(asyncio.run(measure()).error).startswith('status 400: {"error"')


def test_offline_latency_and_the_plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = {"vocab_size": 32000, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 64}
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], **sizes, **heads}))
    common = [str(tmp_path), "--load-format", "dummy", "--skip-tokenizer-init", "--max-num-seqs", "4"]
    out, picture = tmp_path / "out.json", tmp_path / "run.png"
    flags = ["--dataset-name", "random", "--num-prompts", "3", "--random-input-len", "8", "--random-output-len", "3"]
    files = ["--output-json", str(out), "--plot", str(picture), "--num-iters", "2"]
    assert bench.main(["throughput", *common, *flags, *files]) == 0
    figures = json.loads(out.read_text())
    assert (figures["num_requests"], figures["total_num_tokens"], len(figures["iterations"])) == (3, 33, 2)
    assert figures["elapsed_time"] == min(one["duration"] for one in figures["iterations"])
    assert figures["tokens_per_second"] == pytest.approx(33 / figures["elapsed_time"])
    assert figures["iterations"][0]["mean_ttft_ms"] < figures["iterations"][0]["mean_e2el_ms"]
    assert picture.read_bytes().startswith(b"\x89PNG")
    counts = [
        "--input-len",
        "4",
        "--output-len",
        "2",
        "--batch-size",
        "2",
        "--num-iters",
        "3",
        "--num-iters-warmup",
        "1",
    ]
    assert bench.main(["latency", *common, *counts, "--output-json", str(out)]) == 0
    figures = json.loads(out.read_text())
    assert len(figures["latencies"]) == 3
    assert figures["avg_latency"] == pytest.approx(statistics.fmean(figures["latencies"]))
    assert figures["percentiles"]["50"] == pytest.approx(statistics.median(figures["latencies"]))
    assert "seconds of a batch" in capsys.readouterr().out


def test_kinds(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["serv"]) == 2
    assert "unknown kind 'serv'; did you mean 'serve'?" in capsys.readouterr().err
    for kind in bench.KINDS:
        with pytest.raises(SystemExit) as ended:
            bench.main([kind, "--help"])
        assert ended.value.code == 0
        assert f"usage: octavo bench {kind}" in capsys.readouterr().out
