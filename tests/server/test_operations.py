"""Models, health, version, cache reset, and metrics whose counters are exact."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import time
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from octavo import __version__
from octavo.config.serve import ServeConfig
from octavo.frontend.server.serve import Activity, log_activity
from octavo.observe.metrics import Histogram, ServerMetrics
from octavo.protocol.output import EngineStats
from tests.server.fake_service import MAX_MODEL_LEN, FakeService
from tests.server.harness import CHAT, TEXT, client, logged_lines, run, samples

LABEL = '{model_name="tiny"}'


async def _get(service: FakeService, config: ServeConfig, *paths: str) -> list[Any]:
    async with client(service, config) as http:
        return [await http.get(path) for path in paths]


def test_models(service: FakeService, config: ServeConfig) -> None:
    listed, one, none = run(_get(service, config, "/v1/models", "/v1/models/small", "/v1/models/gpt-9"))
    assert [card["id"] for card in listed.json()["data"]] == ["tiny", "small"]
    assert listed.json()["object"] == "list"
    assert one.json() == listed.json()["data"][1]
    assert one.json()["max_model_len"] == MAX_MODEL_LEN
    assert one.json()["object"] == "model"
    assert (none.status_code, none.json()["error"]["code"]) == (404, "model_not_found")


def test_the_model_is_called_by_its_path_where_no_name_is_given(service: FakeService) -> None:
    listed, one = run(_get(service, ServeConfig(), "/v1/models", "/v1/models/fake/model"))
    assert listed.json()["data"][0]["id"] == one.json()["id"] == "fake/model"


def test_health_and_version(service: FakeService, config: ServeConfig) -> None:
    health, version = run(_get(service, config, "/health", "/version"))
    assert health.status_code == 200
    assert version.json() == {"version": __version__}


def test_probes_differ(service: FakeService, config: ServeConfig) -> None:
    paths = ("/live", "/ready", "/health", "/ping")

    async def ask() -> list[list[int]]:
        found = []
        async with client(service, config) as http:
            for state in ("serves", "is started again", "is dead", "drains"):
                service.dead = state in ("is started again", "is dead")
                service.restarts = state == "is started again"
                service._draining = state == "drains"
                found.append([(await http.get(path)).status_code for path in paths])
        return found

    assert run(ask()) == [[200] * 4, [200, 503, 503, 503], [503] * 4, [200, 503, 503, 503]]


def test_reset_prefix_cache(service: FakeService, config: ServeConfig) -> None:
    async def ask() -> Any:
        async with client(service, config) as http:
            return await http.post("/reset_prefix_cache")

    done = run(ask())
    assert (done.status_code, done.json()) == (200, {"success": True})
    assert service.num_resets == 1


def test_engine_figures_are_read_when_asked_for(service: FakeService, config: ServeConfig) -> None:
    (before,) = run(_get(service, config, "/metrics"))
    assert samples(before.text)["octavo:num_pages" + LABEL] == 0
    service.figures = EngineStats(
        num_running=3, num_waiting=2, num_slots=8, used_slots=4, num_pages=40, free_pages=10, cached_pages=15,
        num_waiting_tokens=700, waits_since=time.time() - 50,
        used_pages=12, pending_pages=3, prefix_queries=100, prefix_hits=60, num_preemptions=5, num_steps=77, failed_rows=1,
    )  # fmt: skip
    (page,) = run(_get(service, config, "/metrics"))
    assert page.headers["content-type"].startswith("text/plain; version=0.0.4")
    shown = samples(page.text)
    expected = {
        "num_requests_running": 3,
        "num_requests_waiting": 2,
        "num_tokens_waiting": 700,
        "saturation": 0.5,
        "num_slots": 8,
        "num_slots_used": 4,
        "kv_cache_usage_perc": 0.3,
        "prefix_cache_queries_total": 100,
        "prefix_cache_hits_total": 60,
        "num_preemptions_total": 5,
        "corrupted_requests_total": 1,
        "engine_steps_total": 77,
    }
    assert {name: shown[f"octavo:{name}{LABEL}"] for name in expected} == expected
    assert 50 <= shown["octavo:queue_wait_seconds" + LABEL] < 55
    assert samples(before.text)["octavo:queue_wait_seconds" + LABEL] == 0
    states = {"free": 10, "cached": 15, "used": 12, "pending": 3}
    pages = {state: shown[f'octavo:pool_pages{{model_name="tiny",state="{state}"}}'] for state in states}
    assert pages == states


def test_counters_equal_what_clients_were_told(service: FakeService, config: ServeConfig) -> None:
    async def ask() -> tuple[list[dict[str, int]], str]:
        usages: list[dict[str, int]] = []
        async with client(service, config) as http:
            for tokens in range(1, 6):
                chat = {**CHAT, "max_tokens": tokens, "n": 2}
                usages.append((await http.post("/v1/chat/completions", json=chat)).json()["usage"])
                text = {**TEXT, "max_tokens": tokens, "prompt": ["a", "bb"]}
                usages.append((await http.post("/v1/completions", json=text)).json()["usage"])
                await http.post("/v1/completions", json={**text, "stream": True})
                usages.append(usages[-1])
                await http.post("/v1/completions", json={**text, "top_p": 7})
            return usages, (await http.get("/metrics")).text

    usages, page = run(ask())
    shown = samples(page)
    assert shown["octavo:prompt_tokens_total" + LABEL] == sum(u["prompt_tokens"] for u in usages)
    assert shown["octavo:generation_tokens_total" + LABEL] == sum(u["completion_tokens"] for u in usages)
    reasons = {r: shown[f'octavo:request_success_total{{finished_reason="{r}",model_name="tiny"}}'] for r in
               ("stop", "length", "abort", "error")}  # fmt: skip
    assert reasons == {"stop": 0, "length": 5 * 6, "abort": 0, "error": 0}
    # One entry a prompt: 5 of chat, 5 * 2 of completions, twice.
    for name in ("time_to_first_token_seconds", "e2e_request_latency_seconds", "request_prompt_tokens"):
        assert shown[f"octavo:{name}_count{LABEL}"] == 25
    assert shown["octavo:request_queue_time_seconds_sum" + LABEL] == 25 * 0.25
    assert shown["octavo:request_prompt_tokens_sum" + LABEL] == shown["octavo:prompt_tokens_total" + LABEL]
    assert shown["octavo:request_generation_tokens_sum" + LABEL] == shown["octavo:generation_tokens_total" + LABEL]
    # Every token but a choice's first has a distance to the one before.
    assert shown["octavo:inter_token_latency_seconds_count" + LABEL] == (1 + 2 + 3 + 4) * 6
    assert shown['octavo:request_prompt_tokens_bucket{le="+Inf",model_name="tiny"}'] == 25


def test_names_and_types_of_all_families(service: FakeService, config: ServeConfig) -> None:
    (page,) = run(_get(service, config, "/metrics"))
    kinds = {family.name: family.type for family in text_string_to_metric_families(page.text)}
    gauges = "num_requests_running num_requests_waiting num_requests_waiting_by_reason num_slots num_slots_used"
    gauges += " kv_cache_usage_perc num_pages pool_pages num_tokens_waiting queue_wait_seconds saturation"
    counters = "prefix_cache_queries prefix_cache_hits num_preemptions corrupted_requests engine_steps prompt_tokens"
    counters += " prompt_tokens_cached prompt_tokens_by_source generation_tokens request_success admission_rejections"
    counters += " engine_restarts"
    histograms = "time_to_first_token_seconds inter_token_latency_seconds e2e_request_latency_seconds"
    histograms += " request_queue_time_seconds request_prompt_tokens request_generation_tokens"
    histograms += " request_time_per_output_token_seconds request_inference_time_seconds request_prefill_time_seconds"
    histograms += " request_decode_time_seconds request_prefill_kv_computed_tokens request_max_num_generation_tokens"
    histograms += " request_params_n request_params_max_tokens"
    expected = {f"octavo:{name}": kind for kind, names in
                (("gauge", gauges), ("counter", counters), ("histogram", histograms)) for name in names.split()}  # fmt: skip
    assert kinds == expected


def test_names_of_vllm_for_existing_dashboards(service: FakeService, config: ServeConfig) -> None:
    (plain,) = run(_get(service, config, "/metrics"))
    names = {name.split("{")[0].removeprefix("octavo:") for name in samples(plain.text)}
    (page,) = run(_get(service, dataclasses.replace(config, metrics_names="vllm"), "/metrics"))
    shown = samples(page.text)
    assert {name.split("{")[0].removeprefix("vllm:") for name in shown} == names
    assert shown['vllm:generation_tokens_total{engine="0",model_name="tiny"}'] == 0
    (both,) = run(_get(service, dataclasses.replace(config, metrics_names="both"), "/metrics"))
    assert set(samples(both.text)) == set(samples(plain.text)) | set(shown)


def test_where_prompt_tokens_came_from_and_what_was_asked_for(service: FakeService, config: ServeConfig) -> None:
    service.num_cached = 2

    async def ask() -> str:
        async with client(service, config) as http:
            await http.post("/v1/completions", json={**TEXT, "max_tokens": 5, "n": 3})
            service.queue_full = True
            assert (await http.post("/v1/completions", json=TEXT)).status_code == 429
            return (await http.get("/metrics")).text

    shown = samples(run(ask()))
    sources = {s: shown[f'octavo:prompt_tokens_by_source_total{{model_name="tiny",source="{s}"}}'] for s in
               ("local_compute", "local_cache_hit")}  # fmt: skip
    assert sources == {"local_compute": 1, "local_cache_hit": 2}
    assert shown["octavo:prompt_tokens_cached_total" + LABEL] == 2
    assert shown['octavo:admission_rejections_total{model_name="tiny",reason="queue_full"}'] == 1
    sums = {"request_params_n": 3, "request_params_max_tokens": 5, "request_max_num_generation_tokens": 5}
    sums |= {"request_prefill_kv_computed_tokens": 1, "request_generation_tokens": 15}
    assert {name: shown[f"octavo:{name}_sum{LABEL}"] for name in sums} == sums
    spent = {n: shown[f"octavo:{n}_seconds_sum{LABEL}"] for n in ("request_prefill_time", "request_decode_time")}
    whole = shown["octavo:request_inference_time_seconds_sum" + LABEL]
    assert whole == pytest.approx(sum(spent.values()))
    per_token = shown["octavo:request_time_per_output_token_seconds_sum" + LABEL]
    assert per_token == pytest.approx(spent["request_decode_time"] / 4)


def test_what_the_server_does_is_a_line_now_and_then() -> None:
    figures = EngineStats()
    activity = Activity(lambda: figures)
    start = time.monotonic()
    assert activity.line(start + 1) is None
    figures = EngineStats(
        num_running=3, num_waiting=2, num_pages=40, used_pages=10, prefix_queries=200, prefix_hits=50,
        prompt_tokens=1000, generated_tokens=50, num_steps=7,
    )  # fmt: skip
    assert activity.line(start + 11) == (
        "3 running, 2 waiting, cache 25% used; 100.0 prompt and 5.0 output tokens/s, 25% of prompts cached"
    )
    figures = EngineStats(num_pages=40, prompt_tokens=1000, generated_tokens=90, num_steps=9, prefix_queries=200)
    assert activity.line(start + 21) == "0 running, 0 waiting, cache 0% used; 0.0 prompt and 4.0 output tokens/s"
    assert activity.line(start + 31) is None


def test_the_line_is_logged_until_it_is_told_to_stop(caplog: pytest.LogCaptureFixture) -> None:
    async def log() -> None:
        steps = itertools.count(1)
        task = asyncio.create_task(log_activity(Activity(lambda: EngineStats(num_steps=next(steps))), 0.01))
        await asyncio.sleep(0.2)
        task.cancel()

    with logged_lines(caplog):
        run(log())
    assert caplog.messages.count("0 running, 0 waiting, cache 0% used; 0.0 prompt and 0.0 output tokens/s") >= 2


def test_requests_are_logged_without_their_text(
    service: FakeService, config: ServeConfig, caplog: pytest.LogCaptureFixture
) -> None:
    async def ask(asked: ServeConfig) -> None:
        async with client(service, asked) as http:
            await http.post("/v1/completions", json=TEXT | {"prompt": ["Hi", "secret"]}, headers={"X-Request-Id": "r1"})

    with logged_lines(caplog):
        run(ask(config))
        assert caplog.messages == []
        run(ask(dataclasses.replace(config, enable_log_requests=True)))
    assert caplog.messages == ["cmpl-r1: prompts of 3, 7 tokens, n 1, max_tokens 4"]


def test_calls_are_logged_without_secrets(
    service: FakeService, config: ServeConfig, caplog: pytest.LogCaptureFixture
) -> None:
    logged = dataclasses.replace(config, enable_access_log=True, api_key=("swordfish",))
    key = {"Authorization": "Bearer swordfish"}

    async def ask(asked: ServeConfig) -> None:
        async with client(service, asked) as http:
            await http.post("/v1/chat/completions?token=hush", json=CHAT | {"stream": True}, headers=key)
            await http.get("/v1/models", headers={"Authorization": "Bearer shark"})
            await http.get("/no%0Awhere", headers=key)

    with logged_lines(caplog):
        run(ask(config))
        assert caplog.messages == []
        run(ask(logged))
    shown = [line.rsplit(" ", 2)[0] for line in caplog.messages]
    assert shown == [
        "127.0.0.1 POST /v1/chat/completions 200",
        "127.0.0.1 GET /v1/models 401",
        "127.0.0.1 GET /no%0Awhere 404",
    ]
    assert not any(word in line for line in caplog.messages for word in ("swordfish", "shark", "hush", "Oktav"))


def test_ping_and_load(service: FakeService, config: ServeConfig) -> None:
    async def ask() -> list[Any]:
        async with client(service, config) as http:
            load = await http.get("/load")
            waiting = asyncio.create_task(http.post("/v1/completions", json=TEXT))
            while not service.open:
                await asyncio.sleep(0.001)
            busy = await http.get("/load")
            await waiting
            return [load, busy, await http.get("/ping"), await http.post("/ping")]

    service.delay = 0.02
    load, busy, got, posted = run(ask())
    assert (load.json(), busy.json()) == ({"server_load": 0}, {"server_load": 1})
    assert (got.status_code, posted.status_code) == (200, 200)


def test_texts_to_ids_and_back(service: FakeService, config: ServeConfig) -> None:
    async def ask(path: str, body: dict[str, Any]) -> Any:
        async with client(service, config) as http:
            return (await http.post(path, json=body)).json()

    ids = service.words.encode("Hi")
    answer = run(ask("/tokenize", {"model": "small", "prompt": "Hi", "return_token_strs": True}))
    words = [service.words.token_text(token) for token in ids]
    assert answer == {"count": 3, "max_model_len": MAX_MODEL_LEN, "tokens": ids, "token_strs": words}
    assert run(ask("/tokenize", {"prompt": "Hi", "add_special_tokens": False}))["tokens"] == ids[1:]
    assert run(ask("/tokenize", {"prompt": ""}))["tokens"] == [1]
    chat = run(ask("/tokenize", {"messages": CHAT["messages"], "add_generation_prompt": False}))
    assert chat["tokens"] == [*ids[1:], 2]
    assert service.conversations[0][1]["add_generation_prompt"] is False
    assert run(ask("/detokenize", {"tokens": [0, 1, 6]})) == {"prompt": "Ein Oktav 八"}
    assert service.requests == []


def test_histogram_buckets_count_up_to_their_bound() -> None:
    histogram = Histogram("h", "help", (1.0, 2.0))
    for value, times in ((0.5, 1), (1.0, 2), (1.5, 1), (9.0, 3)):
        histogram.observe(value, times)
    found = {s.labels.get("le", s.name): s.value for s in histogram.family("", {"m": "x"}).samples}
    assert found == {"1.0": 3, "2.0": 4, "+Inf": 7, "h_count": 7, "h_sum": 0.5 + 2 + 1.5 + 27}


def test_two_servers_in_one_process_share_no_metrics() -> None:
    first, second = (ServerMetrics(name, lambda: None) for name in ("a", "b"))
    first.count_generated(5)
    assert samples(first.render().decode())['octavo:generation_tokens_total{model_name="a"}'] == 5
    assert samples(second.render().decode())['octavo:generation_tokens_total{model_name="b"}'] == 0
    assert 'model_name="a"' not in second.render().decode()


def test_fronts_count_together(tmp_path: Path) -> None:
    fronts = [ServerMetrics("tiny", lambda: None, names="both") for _ in range(12)]
    for index, metrics in enumerate(fronts):
        metrics.share(tmp_path, index)
        metrics.count_generated(index)
        metrics.count_prompt(10, 4)
        metrics.count_finish("length")
        metrics.count_rejected("queue_tokens")
        metrics.observe("request_prompt_tokens", 10)
        metrics.publish()
    fronts[3].count_generated(100)
    page = samples(fronts[3].render().decode())
    labels = '{model_name="tiny"}'
    assert page[f"octavo:generation_tokens_total{labels}"] == sum(range(12)) + 100
    assert page[f"octavo:prompt_tokens_cached_total{labels}"] == 48
    assert page['octavo:request_success_total{finished_reason="length",model_name="tiny"}'] == 12
    assert page[f"octavo:request_prompt_tokens_sum{labels}"] == 120
    assert page['octavo:admission_rejections_total{model_name="tiny",reason="queue_tokens"}'] == 12
    assert page['octavo:admission_rejections_total{model_name="tiny",reason="queue_timeout"}'] == 0
    assert page['octavo:request_prompt_tokens_bucket{le="10.0",model_name="tiny"}'] == 12
    assert page['vllm:generation_tokens_total{engine="0",model_name="tiny"}'] == sum(range(12)) + 100
    # The others know it at once, and what was counted stays when the engine's folder is gone.
    assert samples(fronts[0].render().decode())[f"octavo:generation_tokens_total{labels}"] == sum(range(12)) + 100
    for path in tmp_path.iterdir():
        path.unlink()
    tmp_path.rmdir()
    fronts[3].publish()
    assert samples(fronts[3].render().decode())[f"octavo:generation_tokens_total{labels}"] == 103
