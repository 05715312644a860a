"""The front of one engine: text in, text deltas out. HTTP routes and `AsyncLLM` are thin layers over it."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from octavo.base.errors import (
    EngineStartingError,
    InvalidRequestError,
    OctavoError,
    QueuedTokensError,
    QueueFullError,
    QueueTimeoutError,
    ShuttingDownError,
)
from octavo.config.schedule import ScheduleConfig
from octavo.engine.client import EngineClient
from octavo.engine.streams import Inbox
from octavo.frontend.beams import BeamSearch, BeamSearchOutput, BeamSearchParams, next_logprobs
from octavo.frontend.collect import Collector, OutputKind
from octavo.frontend.intake import Intake, Prompt
from octavo.frontend.text.tokenizer import Tokenizer
from octavo.frontend.vectors import PoolingRequestOutput, VectorCollector
from octavo.protocol.control import ResetPrefixCache
from octavo.protocol.output import EngineStats, Logprob
from octavo.protocol.pooling import PoolingParams
from octavo.protocol.request import Request
from octavo.protocol.sampling import SamplingParams

# Shorter texts are tokenized where they are: handing them to a thread costs more.
_INLINE_CHARACTERS = 2048
_NUM_TEXT_THREADS = 2

_T = TypeVar("_T")


class RequestStream:
    """One running request: an async iterator of RequestOutput. Leaving it early aborts the request at once.

    Use as `async with await service.generate(...) as stream: async for output in stream: ...`, or call `aclose()` in a
    `finally`. Iteration raises EngineDeadError when the engine died. A choice that failed alone ends with finish_reason
    "error" and `RequestOutput.error` says why; it is not raised. Every stream that is not closed ends with an output whose
    choices all have a finish_reason, also after `abort()`.
    """

    def __init__(
        self,
        client: EngineClient,
        request: Request,
        collector: Collector | VectorCollector,
        ended: Callable[[int], None],
    ) -> None:
        self.request_id = collector.request_id
        self.prompt = collector.prompt
        self.prompt_token_ids = collector.prompt_token_ids
        self._key = request.key
        self._client = client
        self._collector = collector
        self._waiting: asyncio.Future[None] | None = None
        self._ended = ended
        self._aborted = False
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._inbox: Inbox = client.submit(request, self._wake)

    @property
    def started(self) -> bool:
        """Whether the engine has begun to work on it."""
        return self._collector.started or bool(self._inbox.news)

    def __aiter__(self) -> RequestStream:
        return self

    async def __anext__(self) -> Any:
        """Return what is new: with kind "delta", choices that changed with only their new text, ids and logprobs."""
        while not self._closed:
            if not (self._inbox.news or self._aborted or self._inbox.error is not None):
                self._waiting = asyncio.get_running_loop().create_future()
                await self._waiting
            output = self._collector.take(self._inbox.take())
            if self._collector.finishes:
                self._send_finishes()
            if self._collector.finished:
                self._end()
            elif self._aborted:
                output = self._collector.abort()
                self._end()
            elif self._inbox.error is not None and output is None:
                error = self._inbox.error
                self._end()
                raise error
            if output is not None:
                return output
        raise StopAsyncIteration

    def expire_after(self, seconds: float) -> None:
        """End it with a QueueTimeoutError, unless the engine has begun with it by then."""
        self._timer = asyncio.get_running_loop().call_later(seconds, self._expire, seconds)

    def _expire(self, seconds: float) -> None:
        if not self.started and self._inbox.error is None:
            message = f"the request waited for {seconds:g} seconds, and its turn did not come; try again later"
            self._inbox.error = QueueTimeoutError(message)
            self._client.abort([self._key])
            self._wake()

    def abort(self) -> None:
        """Stop generating at once; iteration gets one more output, with finish_reason "abort"."""
        if not self._closed:
            self._aborted = True
            self._client.abort([self._key])
            self._wake()

    async def aclose(self) -> None:
        """Abort what still runs; idempotent. Pages and slots come back within one step."""
        if not self._closed:
            self._client.abort([self._key])
            self._end()

    async def __aenter__(self) -> RequestStream:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    def _wake(self) -> None:
        # A bare future: this happens for every token, and asyncio's own events cost thrice as much.
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def _send_finishes(self) -> None:
        for finish in self._collector.finishes:
            self._client.finish(finish.key, finish.choice, finish.num_tokens)
        self._collector.finishes.clear()

    def _end(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._inbox.wake = None  # It holds this stream, which holds the inbox: neither shall wait for the collector.
        self._client.forget(self._key)
        self._ended(self._key)


class TextService:
    """Text generation by one engine in another process.

    max_model_len: prompt and output tokens together. tokenizer: None with skip_tokenizer_init. sampling: the model's own
    defaults of sampling parameters. limits: of what may wait for the engine to begin with it. restarts: whether a dead engine
    will be started again.
    """

    def __init__(self, client: EngineClient, intake: Intake, limits: ScheduleConfig | None = None) -> None:
        self.max_model_len: int = intake.max_model_len
        self.tokenizer: Tokenizer | None = intake.tokenizer
        self.sampling: Mapping[str, Any] = intake.sampling
        self.restarts = False
        self._client = client
        self._intake = intake
        self._limits = limits or ScheduleConfig()
        self._streams: dict[int, RequestStream] = {}
        self._preparing = 0
        self._draining = False
        self._idle = asyncio.Event()
        self._threads = ThreadPoolExecutor(_NUM_TEXT_THREADS, thread_name_prefix="text")

    async def start(self) -> None:
        """Wait until the engine is loaded. Raises what stopped it: ConfigError, CheckpointError, EngineDeadError."""
        self.max_model_len = (await self._client.start()).max_model_len
        self._intake = dataclasses.replace(self._intake, max_model_len=self.max_model_len)

    async def ended(self) -> OctavoError:
        """Return what the engine died of, once it is dead."""
        await self._client.ended.wait()
        assert self._client.dead is not None
        return self._client.dead

    def go_on_with(self, client: EngineClient) -> None:
        """Take another engine in place of the dead one, with which all that was open has failed; `start` waits for it."""
        self._client.disconnect()
        self._client = client

    async def generate(
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str = "",
        kind: OutputKind = "delta",
        intake: Intake | None = None,
        shown: Collection[int] = (),
    ) -> RequestStream:
        """Tokenize, check and queue a request; return its stream of outputs.

        All errors of the request are raised here, before any output: InvalidRequestError naming the field (prompt,
        max_tokens, ...), QueueFullError, ShuttingDownError, EngineDeadError. `request_id` is only a label: two running
        requests may share it. kind: outputs hold what is new ("delta"), all so far ("cumulative"), or there is exactly
        one output, the whole answer ("final"). intake: what it is checked against, if not the service's own. shown: ids of
        special tokens whose text is given out though others are skipped.
        """
        make = functools.partial(
            (intake or self._intake).request, prompt, params, priority=priority, cache_salt=cache_salt
        )
        # Whatever its length, what a grammar takes to be looked at nobody knows.
        size = _num_characters(prompt) if params.structured_outputs is None else _INLINE_CHARACTERS + 1
        request, text = await self._prepare(make, size)
        collector = Collector(
            request,
            request_id=request_id or f"req-{uuid.uuid4().hex}",
            prompt=text,
            tokenizer=self.tokenizer,
            kind=kind,
            shown=shown,
        )
        return self._open(request, collector)

    async def encode(
        self, prompt: Prompt, params: PoolingParams, *, request_id: str | None = None, priority: int = 0
    ) -> PoolingRequestOutput:
        """Return the vector of a prompt. Raises what `generate` raises; what the engine refuses is in the output's `error`."""
        make = functools.partial(self._intake.pooling_request, prompt, params, priority=priority)
        request, _ = await self._prepare(make, _num_characters(prompt))
        collector = VectorCollector(request, params, request_id=request_id or f"pool-{uuid.uuid4().hex}")
        async with self._open(request, collector) as stream:
            outputs: list[Any] = [output async for output in stream]
        return outputs[-1]

    async def beam_search(
        self, prompt: Prompt, params: BeamSearchParams, *, request_id: str | None = None, priority: int = 0
    ) -> BeamSearchOutput:
        """Search for the likeliest continuations of a prompt. Raises what `generate` raises, and GenerationError."""
        start = functools.partial(BeamSearch.start, self._intake, prompt, params)
        search = await self._run(start, _num_characters(prompt))
        # What users may ask for does not limit what the search needs.
        intake = dataclasses.replace(self._intake, max_logprobs=None)

        async def one_token(tokens: list[int]) -> Mapping[int, Logprob]:
            stream = await self.generate(
                tokens, search.one_token, request_id=request_id, priority=priority, kind="final", intake=intake
            )
            async with stream:
                return next_logprobs([output async for output in stream][-1])

        while not search.finished:
            tasks = [asyncio.ensure_future(one_token(tokens)) for tokens in search.prompts]
            try:
                search.extend(await asyncio.gather(*tasks))
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        return search.output()

    async def chat_prompt(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template: str | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Render a conversation and return its token ids, to be given to `generate`. Raises InvalidRequestError.

        continue_final_message: the prompt ends with the last message, unfinished. chat_template: instead of the model's.
        template_kwargs: further variables of the template.
        """
        render = functools.partial(
            self._intake.chat,
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            chat_template=chat_template,
            template_kwargs=template_kwargs,
        )
        # Never on the loop: how long a template takes does not follow from the length of the chat.
        return await asyncio.get_running_loop().run_in_executor(self._threads, render)

    async def tokenize(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of a text. Raises InvalidRequestError without a tokenizer, or for what is not Unicode."""
        encode = functools.partial(self._tokenizer_for("prompt").encode, text, add_special_tokens=add_special_tokens)
        return await self._run(encode, len(text))

    async def detokenize(self, ids: list[int]) -> str:
        """Return the text of ids, special tokens included. Raises InvalidRequestError for an id that is none."""
        tokenizer = self._tokenizer_for("tokens")
        for token in ids:
            if not 0 <= token < tokenizer.vocab_size:
                last = tokenizer.vocab_size - 1
                raise InvalidRequestError(f"token id {token} is not in the vocabulary, 0 to {last}", field="tokens")
        return await self._run(functools.partial(tokenizer.decode, ids, skip_special_tokens=False), len(ids))

    @property
    def chat_template(self) -> str | None:
        """The source of the template that chats are rendered with; None without a tokenizer."""
        return None if self._intake.template is None else self._intake.template.source

    def stats(self) -> EngineStats | None:
        """Return the engine's latest gauges and totals; None until it is loaded."""
        return self._client.stats

    @property
    def healthy(self) -> bool:
        """Whether the engine lives and answers."""
        return self._client.healthy

    @property
    def alive(self) -> bool:
        """Whether it helps to wait: False once the engine is dead for good, or gives no sign of life."""
        client = self._client
        return client.healthy or client.loading or (client.dead is not None and self.restarts)

    def problem(self) -> OctavoError | None:
        """Return why no request is taken now; None if they are."""
        client = self._client
        if self._draining:
            return ShuttingDownError("the server is shutting down and takes no new requests")
        if client.loading:
            return EngineStartingError("the model is being loaded; try again later")
        if client.dead is not None and self.restarts:
            return EngineStartingError(f"the engine is started again: {client.dead.message}; try again later")
        return client.dead

    @property
    def draining(self) -> bool:
        """Whether new requests are refused because of a shutdown."""
        return self._draining

    @property
    def num_open(self) -> int:
        """Requests that have not ended."""
        return len(self._streams)

    def abort(self, request_id: str) -> int:
        """Abort every running request with this label; returns how many there were."""
        streams = [stream for stream in self._streams.values() if stream.request_id == request_id]
        for stream in streams:
            stream.abort()
        return len(streams)

    async def drain(self, timeout: float) -> bool:
        """Refuse new requests, wait up to `timeout` seconds for running ones, abort the rest; True if none was aborted."""
        self._draining = True
        if not self._streams:
            self._idle.set()
        try:
            await asyncio.wait_for(self._idle.wait(), timeout)
        except TimeoutError:
            for stream in list(self._streams.values()):
                stream.abort()
            return False
        return True

    async def reset_prefix_cache(self) -> bool:
        """Forget cached prefixes; False if the engine refused."""
        ack = await self._client.control(ResetPrefixCache())
        return ack.ok

    async def close(self) -> None:
        """Stop the engine process and remove its sockets; idempotent."""
        self.disconnect()
        await self._client.close()

    def disconnect(self) -> None:
        """Fail what is open and close the way to the engine, whose process is left to its owner; idempotent."""
        self._draining = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._intake.template is not None:
            self._intake.template.stop()
        self._client.disconnect()

    async def _prepare(
        self, make: Callable[..., tuple[Request, str | None]], num_characters: int
    ) -> tuple[Request, str | None]:
        """Tokenize and check a request, which counts as waiting meanwhile. make: is given its `key`."""
        self._check_admission()
        self._preparing += 1
        try:
            made = await self._run(functools.partial(make, key=self._client.new_key()), num_characters)
        finally:
            self._preparing -= 1
        self._check_admission(len(made[0].tokens))
        return made

    def _open(self, request: Request, collector: Collector | VectorCollector) -> RequestStream:
        stream = self._streams[request.key] = RequestStream(self._client, request, collector, self._forget)
        if self._limits.queue_timeout:
            stream.expire_after(self._limits.queue_timeout)
        return stream

    def _check_admission(self, num_tokens: int = 0) -> None:
        problem = self.problem()
        if problem is not None:
            raise problem
        most, most_tokens = self._limits.max_num_queued_reqs, self._limits.max_num_queued_tokens
        if most and self._num_waiting() >= most:
            raise QueueFullError(f"{most} requests are waiting already; try again later")
        if most_tokens and num_tokens:
            waiting = sum(len(one.prompt_token_ids) for one in self._streams.values() if not one.started)
            if (
                waiting and waiting + num_tokens > most_tokens
            ):  # One that is too long for the queue may come when none waits.
                raise QueuedTokensError(f"{waiting} tokens are waiting already, of {most_tokens}; try again later")

    def _tokenizer_for(self, field: str) -> Tokenizer:
        if self.tokenizer is None:
            raise InvalidRequestError("there is no tokenizer: texts cannot be read or written", field=field)
        return self.tokenizer

    def _num_waiting(self) -> int:
        """Requests that the engine has not begun with."""
        return self._preparing + sum(not stream.started for stream in self._streams.values())

    def _forget(self, key: int) -> None:
        self._streams.pop(key, None)
        if self._draining and not self._streams:
            self._idle.set()

    async def _run(self, work: Callable[[], _T], num_characters: int) -> _T:
        """Run text work: short texts here, long ones in a thread, so that the event loop stays free."""
        if num_characters <= _INLINE_CHARACTERS:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def _num_characters(prompt: Any) -> int:
    """Return about how much text (or how many ids) there is to read."""
    if isinstance(prompt, Mapping):
        return sum(_num_characters(value) for value in prompt.values())
    if isinstance(prompt, (list, tuple)) and prompt and isinstance(prompt[0], Mapping):
        return sum(_num_characters(item) for item in prompt)
    return len(prompt) if isinstance(prompt, (str, list, tuple)) else 0
