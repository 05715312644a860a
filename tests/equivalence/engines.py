"""An engine in this process, driven step by step, and one in a process of its own, asked through its service or over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import json
import time
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Protocol

import httpx

from octavo import launch
from octavo.config.engine import EngineConfig
from octavo.config.serve import ServeConfig
from octavo.engine.spawn import EngineElsewhere
from octavo.engine.streams import Streams
from octavo.frontend.collect import Collector
from octavo.frontend.service import TextService
from octavo.protocol.arrays import int64
from octavo.protocol.control import Control, ResetPrefixCache
from octavo.protocol.output import EngineStats, RequestOutput
from octavo.protocol.request import Abort
from tests.equivalence.features import Scenario
from tests.equivalence.models import FORM, PENALTIES, PROMPTS, ids_of, words
from tests.equivalence.workload import Answer, Choice, Job
from tests.server.harness import events_of, loopback

# What a step takes about; arrivals and aborts are counted in steps.
_STEP_SECONDS = 0.003
# Longer than any case takes.
_STUCK_SECONDS = 60.0


class Engine(Protocol):
    """An engine and a way to ask it. Answers come in the order of the jobs; None for what was aborted before its end."""

    def run(self, jobs: Sequence[Job], scenario: Scenario) -> list[Answer | None]: ...

    def stats(self) -> EngineStats: ...

    def reset(self) -> None: ...

    def close(self) -> None: ...


class LocalEngine:
    """In this process: what happens at which step is the same in every run."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._local = launch.build_local(EngineConfig.from_options(options))
        self._core, self._streams = self._local.engine.core, Streams()

    def run(self, jobs: Sequence[Job], scenario: Scenario) -> list[Answer | None]:
        """Submit every job at its step, abort at its step, and turn the loop until nothing is left."""
        answers: list[Answer | None] = [None] * len(jobs)
        running: dict[int, tuple[int, Collector, list[RequestOutput]]] = {}
        keys: dict[int, int] = {}
        step = 0
        deadline = time.monotonic() + _STUCK_SECONDS
        while len(keys) < len(jobs) or running:
            assert time.monotonic() < deadline, "the engine does not come to an end"
            for index, job in enumerate(jobs):
                if job.arrival == step:
                    keys[index] = self._submit(index, job, scenario, running)
                if job.abort_after is not None and job.arrival + job.abort_after == step:
                    self._abort(keys[index], running)
            self._turn(answers, running)
            step += 1
        while self._core.busy:
            self._core.step()
        return answers

    def stats(self) -> EngineStats:
        """Return gauges and totals."""
        return self._core.stats()

    def reset(self) -> None:
        """Forget cached prefixes."""
        self._core.handle(Control(ticket=self._streams.new_key(), command=ResetPrefixCache()))
        while self._core.busy:
            self._core.step()

    def close(self) -> None:
        """Free the model."""
        self._local.engine.shutdown()

    def _submit(self, index: int, job: Job, scenario: Scenario, running: dict[int, Any]) -> int:
        request, text = self._local.intake.request(
            PROMPTS[job.prompt], job.params, key=self._streams.new_key(), priority=job.priority
        )
        tokenizer, kind = self._local.intake.tokenizer, "delta" if scenario.stream else "final"
        collector = Collector(request, request_id=str(index), prompt=text, tokenizer=tokenizer, kind=kind)
        running[request.key] = index, collector, []
        self._streams.open(request)
        self._core.handle(request)
        return request.key

    def _abort(self, key: int, running: dict[int, Any]) -> None:
        if self._streams.close(key):
            del running[key]
            self._core.handle(Abort(keys=int64([key])))

    def _turn(self, answers: list[Answer | None], running: dict[int, Any]) -> None:
        delta = self._core.step()
        for inbox in self._streams.deliver(delta) if delta is not None else ():
            index, collector, outputs = running[inbox.key]
            output = collector.take(inbox.take())
            for finish in collector.finishes:
                self._core.handle(finish)
            collector.finishes.clear()
            if output is not None:
                outputs.append(output)
            if collector.finished:
                self._streams.close(inbox.key)
                del running[inbox.key]
                answers[index] = _joined(outputs)


class ServedEngine:
    """In a process of its own, behind a TextService or two, each with a wire of its own, as fronts have them; HTTP goes through a
    real server in front of the first.
    """

    def __init__(self, options: Mapping[str, Any], num_fronts: int = 1) -> None:
        self._loop = asyncio.Runner()
        self._services: list[TextService] = self._await(self._connect(EngineConfig.from_options(options), num_fronts))
        self._service = self._services[0]

    def run(self, jobs: Sequence[Job], scenario: Scenario) -> list[Answer | None]:
        """Send every job at its time, and abort at its time."""
        return self._await(self._run_http(jobs, scenario) if scenario.place == "http" else self._run(jobs, scenario))

    def stats(self) -> EngineStats:
        """Return gauges and totals, once nothing runs any more."""
        return self._await(self._idle_stats())

    def reset(self) -> None:
        """Forget cached prefixes."""
        assert self._await(self._service.reset_prefix_cache())

    def close(self) -> None:
        """End the process."""
        for service in reversed(self._services):
            self._await(service.close())
        self._loop.close()

    async def _connect(self, config: EngineConfig, num_fronts: int) -> list[TextService]:
        process = launch.start_engine(config, num_fronts)
        others = [EngineElsewhere(process.home, front) for front in range(1, num_fronts)]
        return await asyncio.gather(*(launch.connect(config, one) for one in (process, *others)))

    def _await(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run(asyncio.wait_for(work, _STUCK_SECONDS))

    async def _idle_stats(self) -> EngineStats:
        while True:
            stats = self._service.stats() or EngineStats()
            num_open = sum(service.num_open for service in self._services)
            if not (stats.num_running or stats.num_waiting or stats.pending_pages or num_open):
                return stats
            await asyncio.sleep(_STEP_SECONDS)

    async def _run(self, jobs: Sequence[Job], scenario: Scenario) -> list[Answer | None]:
        fronts = itertools.cycle(self._services)
        return await asyncio.gather(*(_timed(job, self._ask(next(fronts), job, scenario)) for job in jobs))

    async def _ask(self, front: TextService, job: Job, scenario: Scenario) -> Answer:
        kind = "delta" if scenario.stream else "final"
        stream = await front.generate(PROMPTS[job.prompt], job.params, priority=job.priority, kind=kind)
        async with stream:
            return _joined([output async for output in stream])

    async def _run_http(self, jobs: Sequence[Job], scenario: Scenario) -> list[Answer | None]:
        async with (
            loopback(self._service, ServeConfig()) as url,  # pyright: ignore[reportArgumentType]
            httpx.AsyncClient(base_url=url, timeout=_STUCK_SECONDS, limits=httpx.Limits()) as http,
        ):
            return await asyncio.gather(*(_timed(job, _post(http, job, scenario)) for job in jobs))


def start_engine(options: Mapping[str, Any], place: str) -> Engine:
    """Load an engine with these options for cases in this place."""
    return LocalEngine(options) if place == "process" else ServedEngine(options, 2 if place == "fronts" else 1)


async def _timed(job: Job, work: Coroutine[Any, Any, Answer]) -> Answer | None:
    """Do the work at the job's time; None if the time to abort came first."""
    asking = asyncio.ensure_future(_later(job.arrival * _STEP_SECONDS, work))
    if job.abort_after is None:
        return await asking
    done, _ = await asyncio.wait([asking], timeout=(job.arrival + job.abort_after) * _STEP_SECONDS)
    if done:
        return asking.result()
    asking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asking
    work.close()
    return None


async def _later(seconds: float, work: Coroutine[Any, Any, Answer]) -> Answer:
    await asyncio.sleep(seconds)
    return await work


def _joined(outputs: list[RequestOutput]) -> Answer:
    """Put the pieces of an answer together."""
    indices = sorted({choice.index for output in outputs for choice in output.outputs})
    parts = [[choice for output in outputs for choice in output.outputs if choice.index == index] for index in indices]
    return Answer(
        choices=[
            Choice(
                ids=[token for part in choice for token in part.token_ids],
                text="".join(part.text for part in choice),
                finish_reason=choice[-1].finish_reason,
                logprobs=None
                if choice[0].logprobs is None
                else [entry[token].logprob for part in choice for token, entry in _tokens(part)],
            )
            for choice in parts
        ],
        cached=outputs[-1].num_cached_tokens,
        pieces=len(outputs),
        prompt_logprobs=_prompt_logprobs(outputs[-1]),
    )


def _prompt_logprobs(output: RequestOutput) -> list[float] | None:
    if output.prompt_logprobs is None:
        return None
    pairs = zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True)
    return [entries[token].logprob for token, entries in pairs if entries is not None]


def _tokens(part: Any) -> Any:
    return zip(part.token_ids, part.logprobs, strict=True)


async def _post(http: httpx.AsyncClient, job: Job, scenario: Scenario) -> Answer:
    params = job.params
    names = (
        "n",
        "temperature",
        "seed",
        "max_tokens",
        "ignore_eos",
        "include_stop_str_in_output",
        "logprobs",
        *PENALTIES,
    )
    body: dict[str, Any] = {name: getattr(params, name) for name in names}
    body |= {"stop": list(params.stop), "stop_token_ids": list(params.stop_token_ids), "priority": job.priority}
    body |= {"allowed_token_ids": params.allowed_token_ids, "bad_words": params.bad_words}
    body |= {"logit_bias": {str(index): value for index, value in (params.logit_bias or {}).items()}}
    body |= {"structured_outputs": None if params.structured_outputs is None else FORM}
    body |= {"prompt": PROMPTS[job.prompt], "stream": scenario.stream}
    if params.prompt_logprobs is not None:
        # With an echo they come in a stream too.
        body |= {"echo": True, "logprobs": params.logprobs or 0}
    if scenario.stream:
        body["stream_options"] = {"include_usage": True}
    async with http.stream("POST", "/v1/completions", json=body) as response:
        text = (await response.aread()).decode()
        assert response.status_code == 200, text
    if not scenario.stream:
        return _without_echo(job, _decoded([json.loads(text)]))
    events = events_of(text)
    assert events.pop() == "[DONE]"
    return _without_echo(job, _decoded([json.loads(event) for event in events]))


def _without_echo(job: Job, answer: Answer) -> Answer:
    """Take the prompt off an answer that begins with it."""
    if job.params.prompt_logprobs is None:
        return answer
    prompt, choices = PROMPTS[job.prompt], list[Choice]()
    for choice in answer.choices:
        assert choice.text.startswith(words(prompt))
        assert choice.logprobs is not None
        text = choice.text.removeprefix(words(prompt))
        own = None if job.params.logprobs is None else choice.logprobs[len(prompt) :]
        choices.append(dataclasses.replace(choice, text=text, ids=ids_of(text), logprobs=own))
    scores = answer.choices[0].logprobs
    assert scores is not None
    return dataclasses.replace(answer, choices=choices, prompt_logprobs=scores[1 : len(prompt)])


def _decoded(bodies: list[dict[str, Any]]) -> Answer:
    """Read an answer from its whole body or from the bodies of its events; the last one has the usage."""
    choices: list[Choice] = []
    entries = [entry for body in bodies for entry in body["choices"]]
    for index in sorted({entry["index"] for entry in entries}):
        parts = [entry for entry in entries if entry["index"] == index]
        text = "".join(part["text"] for part in parts)
        pieces = [part["logprobs"]["token_logprobs"] for part in parts if part["logprobs"] is not None]
        choices.append(
            Choice(
                ids=ids_of(text.replace("><", "> <")),
                text=text,
                finish_reason=parts[-1]["finish_reason"],
                logprobs=[one for piece in pieces for one in piece] if pieces else None,
            )
        )
    cached = bodies[-1]["usage"]["prompt_tokens_details"]["cached_tokens"]
    return Answer(choices=choices, cached=cached, pieces=len(bodies))
