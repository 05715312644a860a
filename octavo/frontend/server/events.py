"""The one internal event stream: everything that a request, with all its prompts and choices, gives out.

Streamed and whole answers, and later other protocols, are encoders over it. It also counts: usage for the client, and the
server's metrics.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.base.errors import (
    GenerationError,
    InvalidRequestError,
    OctavoError,
    QueueFullError,
    QueueTimeoutError,
    ShuttingDownError,
)
from octavo.base.logging import get_logger
from octavo.frontend.server.context import ServerContext
from octavo.frontend.service import RequestStream
from octavo.observe.metrics import ServerMetrics
from octavo.protocol.output import CompletionOutput, FinishReason, Logprob, RequestOutput
from octavo.protocol.sampling import SamplingParams

Prompt = str | list[int]
_log = get_logger(__name__)
PromptLogprobs = list[dict[int, Logprob] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Echo:
    """What goes before the choices of one prompt: its text, and with log-probabilities its tokens."""

    text: str
    token_ids: Sequence[int] = ()


class Generation:
    """Running requests of one HTTP request. `events()` once, then `aclose()`, which aborts what still runs.

    echoes: what goes before the choices of each prompt, if anything. prompt_only: the answers end there; the one token that
    was generated beside is not shown. prompt_logprobs: of each prompt, as far as they have come.
    """

    def __init__(
        self, context: ServerContext, streams: Sequence[RequestStream], params: SamplingParams, arrival: float
    ) -> None:
        self._context = context
        self._streams = streams
        self._num_choices = params.n
        self._arrival = arrival
        self._echoed: set[int] = set()
        self.echoes: Sequence[Echo] | None = None
        self.prompt_only = False
        self.prompt_logprobs: list[PromptLogprobs | None] = [None] * len(streams)
        self._tallies = [_Tally(context.metrics, len(s.prompt_token_ids), params, arrival) for s in streams]

    @property
    def prompts(self) -> list[tuple[str | None, list[int]]]:
        """Text, if it came as text, and token ids of each prompt."""
        return [(stream.prompt, stream.prompt_token_ids) for stream in self._streams]

    @property
    def usage(self) -> dict[str, Any]:
        """Tokens so far, in OpenAI's shape."""
        prompt = sum(tally.num_prompt for tally in self._tallies)
        completion = 0 if self.prompt_only else sum(tally.num_generated for tally in self._tallies)
        cached = sum(tally.num_cached for tally in self._tallies)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    async def events(self) -> AsyncIterator[list[CompletionOutput]]:
        """Yield what is new: choices with their new text, tokens and logprobs; index counts prompts * n + choice.

        Raises GenerationError, QueueTimeoutError, ShuttingDownError or EngineDeadError when a choice cannot be finished.
        """
        try:
            if len(self._streams) == 1:  # Most are, and another generator would cost every token of theirs.
                async for output in self._streams[0]:
                    yield self._taken(0, output)
                return
            async for prompt_index, output in merge(self._streams):
                yield self._taken(prompt_index, output)
        except OctavoError as error:
            if isinstance(error, QueueTimeoutError):
                self._context.metrics.count_rejected(error.reason)
            for tally in self._tallies:
                tally.ending = "error"
            raise

    def _taken(self, prompt_index: int, output: RequestOutput) -> list[CompletionOutput]:
        self._tallies[prompt_index].add(output)
        self.prompt_logprobs[prompt_index] = output.prompt_logprobs
        for choice in output.outputs:
            choice.index += prompt_index * self._num_choices
            if choice.finish_reason is not None:
                self._check(choice, output)
            if self.echoes is not None or self.prompt_only:
                self._echo(choice, prompt_index)
        return output.outputs

    def _echo(self, choice: CompletionOutput, prompt_index: int) -> None:
        """Put the prompt before the first output of a choice."""
        if self.prompt_only:
            choice.text, choice.token_ids = "", []
            choice.logprobs = None if choice.logprobs is None else []
        if self.echoes is None or choice.index in self._echoed:
            return
        self._echoed.add(choice.index)
        echo = self.echoes[prompt_index]
        choice.text = echo.text + choice.text
        if choice.logprobs is not None and echo.token_ids:
            choice.token_ids = [*echo.token_ids, *choice.token_ids]
            known = (self.prompt_logprobs[prompt_index] or [])[: len(echo.token_ids)]
            missing: PromptLogprobs = [None] * (len(echo.token_ids) - len(known))
            # Where none is known, as of the first token, the place is empty.
            choice.logprobs = [*(one or {} for one in (*known, *missing)), *choice.logprobs]

    def _check(self, choice: CompletionOutput, output: RequestOutput) -> None:
        if choice.finish_reason == "error":
            raise GenerationError(output.error or "generation failed")
        if choice.finish_reason == "abort":
            if self._context.service.draining:
                raise ShuttingDownError("the server shut down before the answer was complete")
            raise GenerationError("generation was aborted")

    async def aclose(self) -> None:
        """Abort what still runs and settle the books; idempotent."""
        for stream in self._streams:
            await stream.aclose()
        for tally in self._tallies:
            tally.close()


async def start(
    context: ServerContext,
    prompts: Sequence[Prompt],
    params: SamplingParams,
    *,
    request_id: str,
    priority: int = 0,
    cache_salt: str = "",
    shown: Collection[int] = (),
) -> Generation:
    """Queue all prompts; raises what TextService.generate raises, and then nothing is left queued."""
    arrival = time.monotonic()
    streams: list[RequestStream] = []
    try:
        for index, prompt in enumerate(prompts):
            try:
                stream = await context.service.generate(
                    prompt,
                    params,
                    request_id=request_id,
                    priority=priority,
                    cache_salt=cache_salt,
                    kind="delta",
                    shown=shown,
                )
            except InvalidRequestError as error:
                if error.field == "prompt" and len(prompts) > 1:
                    raise InvalidRequestError(error.message, field=f"prompt[{index}]") from error
                raise
            streams.append(stream)
    except (OctavoError, asyncio.CancelledError) as error:
        if isinstance(error, QueueFullError):
            context.metrics.count_rejected(error.reason)
        for stream in streams:
            await stream.aclose()
        raise
    if context.config.enable_log_requests:
        sizes = ", ".join(str(len(stream.prompt_token_ids)) for stream in streams)
        _log.info("%s: prompts of %s tokens, n %d, max_tokens %s", request_id, sizes, params.n, params.max_tokens)
    return Generation(context, streams, params, arrival)


async def merge(streams: Sequence[RequestStream]) -> AsyncIterator[tuple[int, RequestOutput]]:
    """Yield the outputs of several streams as they come, each with its stream's number."""
    queue: asyncio.Queue[tuple[int, RequestOutput | None]] = asyncio.Queue()

    async def pump(index: int) -> None:
        try:
            async for output in streams[index]:
                queue.put_nowait((index, output))
        finally:
            queue.put_nowait((index, None))

    tasks = [asyncio.ensure_future(pump(index)) for index in range(len(streams))]
    running = len(tasks)
    try:
        while running:
            index, output = await queue.get()
            if output is not None:
                yield index, output
                continue
            running -= 1
            await tasks[index]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Tally:
    """The books of one prompt: what was used, and when."""

    def __init__(self, metrics: ServerMetrics, num_prompt: int, params: SamplingParams, arrival: float) -> None:
        self._metrics = metrics
        self._arrival = arrival
        self._params = params
        self._last = [0.0] * params.n
        self._counts = [0] * params.n
        self._unfinished = params.n
        self.ending: FinishReason = "abort"
        self._closed = False
        self._begun = 0.0
        self._first_scheduled: float | None = None
        self.num_prompt = num_prompt
        self.num_cached = 0

    @property
    def num_generated(self) -> int:
        """Tokens of all choices so far."""
        return sum(self._counts)

    def add(self, output: RequestOutput) -> None:
        """Count an output; its choices still have their index within the prompt."""
        now = time.monotonic()
        self.num_cached = output.num_cached_tokens
        if not self._begun and any(choice.token_ids for choice in output.outputs):
            self._begin(output, now)
        for choice in output.outputs:
            count = len(choice.token_ids)
            if count:
                last = self._last[choice.index]
                if last:
                    self._metrics.observe("inter_token_latency_seconds", (now - last) / count, count)
                self._last[choice.index] = now
                self._counts[choice.index] += count
                self._metrics.count_generated(count)
            if choice.finish_reason is not None:
                self._unfinished -= 1
                self._metrics.count_finish(choice.finish_reason)

    def _begin(self, output: RequestOutput, now: float) -> None:
        self._begun = now
        self._metrics.count_prompt(self.num_prompt, self.num_cached)
        self._metrics.observe("time_to_first_token_seconds", now - self._arrival)
        times = output.metrics
        if times is not None and times.first_scheduled is not None:
            waited = max(0.0, times.first_scheduled - times.arrival)
            self._metrics.observe("request_queue_time_seconds", waited)
            self._first_scheduled = min(self._arrival + waited, now)

    def close(self) -> None:
        """Count the request once; what has not finished ended as `ending` says."""
        if self._closed:
            return
        self._closed = True
        observe, most = self._metrics.observe, max(self._counts)
        self._metrics.count_finish(self.ending, self._unfinished)
        observe("request_prompt_tokens", self.num_prompt)
        observe("request_generation_tokens", self.num_generated)
        observe("request_params_n", self._params.n)
        if self._params.max_tokens is not None:
            observe("request_params_max_tokens", self._params.max_tokens)
        if self._begun:
            observe("request_prefill_kv_computed_tokens", self.num_prompt - self.num_cached)
            observe("request_max_num_generation_tokens", most)
        if self._unfinished:
            return
        now = time.monotonic()
        observe("e2e_request_latency_seconds", now - self._arrival)
        if self._begun:
            observe("request_decode_time_seconds", now - self._begun)
            if most > 1:
                observe("request_time_per_output_token_seconds", (now - self._begun) / (most - 1))
        if self._first_scheduled is not None:
            observe("request_inference_time_seconds", now - self._first_scheduled)
            observe("request_prefill_time_seconds", self._begun - self._first_scheduled)
