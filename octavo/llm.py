"""The Python face: `LLM` for batches, in this process; `AsyncLLM` for streams, with the engine in a process of its own.

Names and arguments are those that scripts written for vLLM use.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any, TypeVar, overload

import msgspec
import numpy as np

from octavo import launch
from octavo.base.errors import EngineDeadError, InvalidRequestError, UnsupportedError
from octavo.config.engine import EngineConfig
from octavo.frontend.beams import BeamSearch, BeamSearchOutput, BeamSearchParams, next_logprobs
from octavo.frontend.intake import Prompt
from octavo.frontend.offline import OfflineEngine
from octavo.frontend.progress import ProgressBar, progress
from octavo.frontend.service import TextService
from octavo.frontend.text.tokenizer import Tokenizer
from octavo.frontend.vectors import EmbeddingRequestOutput, PoolingRequestOutput
from octavo.observe.metrics import ServerMetrics
from octavo.protocol.arrays import plain
from octavo.protocol.control import Apply, Call, ResetPrefixCache
from octavo.protocol.output import EngineStats, RequestOutput
from octavo.protocol.pooling import PoolingParams
from octavo.protocol.sampling import SamplingParams

Message = Mapping[str, Any]
ModelName = str | os.PathLike[str]
Prompts = Prompt | Sequence[Prompt]
# One for all prompts, or one for each.
Sampling = SamplingParams | Sequence[SamplingParams] | None
Pooling = PoolingParams | Sequence[PoolingParams] | None
Priority = int | Sequence[int] | None

_T = TypeVar("_T")


class LLM:
    """A model, offline: prompts in, answers out, in their order. The engine runs in this process.

    model: a folder, a .gguf file, a hub name in the local cache, or "demo". tokenizer: its folder or file, if it is not the
    model's own. Other options are the engine's (`max_model_len=`, `max_num_seqs=`, ...; `octavo serve --help` lists
    them); an unknown one raises ConfigError with the nearest right name. Also a context manager. No global random state
    is read or changed. Calls from several threads share the steps.
    """

    _local: launch.LocalEngine | None = None

    def __init__(self, model: ModelName = "demo", *, tokenizer: ModelName | None = None, **options: Any) -> None:
        config = _config(model, tokenizer, options)
        self._local = launch.build_local(config)
        self._intake = self._local.intake
        self._offline = OfflineEngine(
            self._local.engine.core,
            self._intake,
            # Enough to refill every slot at once; a list of a million prompts is no load on the engine.
            max_submitted=2 * config.schedule.max_num_seqs,
            by_priority=config.schedule.scheduling_policy == "priority",
        )
        self._num_ranks = config.parallel.num_ranks
        self._metrics = ServerMetrics(config.model.model, self._local.engine.core.stats)

    @overload
    def generate(
        self,
        prompts: Prompts,
        sampling_params: Sampling = None,
        *,
        use_tqdm: ProgressBar = True,
        priority: Priority = None,
    ) -> list[RequestOutput]: ...
    @overload
    def generate(
        self,
        prompts: Iterator[Prompt],
        sampling_params: SamplingParams | Iterable[SamplingParams] | None = None,
        *,
        use_tqdm: ProgressBar = True,
        priority: int | None = None,
    ) -> Iterator[RequestOutput]: ...
    def generate(
        self, prompts: Any, sampling_params: Any = None, *, use_tqdm: ProgressBar = True, priority: Priority = None
    ) -> Any:
        """Complete prompts; returns one output per prompt, in their order.

        prompts: a text, token ids, {"prompt": ...} or {"prompt_token_ids": [...]}, or a list of those. sampling_params and
        priority: one for all, or one per prompt. All prompts are checked before any is queued: an InvalidRequestError
        names the first bad one, and nothing has run. What the engine refuses later (it can never fit its pages) is in that
        prompt's own output: finish_reason "error" and `error`.

        A lazy iterable (a generator, an open file) gives a lazy iterator: it is read as the engine gets room, its answers
        come in its order, and memory does not grow with its length. A bad prompt raises when it is reached.
        """
        params = sampling_params or self.get_default_sampling_params()
        return self._run(prompts, params, SamplingParams, "sampling_params", plain(priority) or 0, use_tqdm)

    @overload
    def encode(
        self, prompts: Prompts, pooling_params: Pooling = None, *, use_tqdm: ProgressBar = True
    ) -> list[PoolingRequestOutput]: ...
    @overload
    def encode(
        self,
        prompts: Iterator[Prompt],
        pooling_params: PoolingParams | Iterable[PoolingParams] | None = None,
        *,
        use_tqdm: ProgressBar = True,
    ) -> Iterator[PoolingRequestOutput]: ...
    def encode(self, prompts: Any, pooling_params: Any = None, *, use_tqdm: ProgressBar = True) -> Any:
        """Return a vector for each prompt, in their order; lists and lazy iterables are treated as by `generate`."""
        return self._run(prompts, pooling_params or PoolingParams(), PoolingParams, "pooling_params", 0, use_tqdm)

    def embed(
        self, prompts: Prompts, pooling_params: Pooling = None, *, use_tqdm: ProgressBar = True
    ) -> list[EmbeddingRequestOutput]:
        """Return an embedding for each prompt, in their order: what `encode` gives, as lists of numbers."""
        found = self.encode(prompts, pooling_params, use_tqdm=use_tqdm)
        return [EmbeddingRequestOutput.from_base(output) for output in found]

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]] | Iterator[Sequence[Message]],
        sampling_params: SamplingParams | Iterable[SamplingParams] | None = None,
        *,
        use_tqdm: ProgressBar = True,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Message] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Answer one conversation or a list of them, rendered with the model's chat template (or `chat_template`).

        Returns a list of RequestOutput; a lazy iterable of conversations gives a lazy iterator, as with `generate`.
        """
        self._check_live()
        if continue_final_message:
            raise UnsupportedError("continue_final_message is not supported", field="continue_final_message")
        render = functools.partial(
            self._intake.chat,
            chat_template=chat_template,
            add_generation_prompt=add_generation_prompt,
            tools=tools,
            template_kwargs=chat_template_kwargs,
        )
        conversations: Any = messages
        if _is_lazy(messages):
            return self.generate(map(render, conversations), sampling_params, use_tqdm=use_tqdm)
        if not isinstance(messages, Sequence) or isinstance(messages, str):
            raise InvalidRequestError(
                f"messages must be a conversation or a list of them, not {type(messages).__name__}", field="messages"
            )
        if messages and isinstance(messages[0], Mapping):
            conversations = [messages]
        params: Any = sampling_params
        return self.generate([render(one) for one in conversations], params, use_tqdm=use_tqdm)

    def beam_search(
        self,
        prompts: Prompts,
        params: BeamSearchParams,
        *,
        use_tqdm: ProgressBar = False,
        concurrency_limit: int | None = None,
    ) -> list[BeamSearchOutput]:
        """Return the likeliest continuations of each prompt, best first. concurrency_limit: prompts searched at once."""
        self._check_live()
        listed: Sequence[Any] = [prompts] if _is_one_prompt(prompts) else list(prompts)
        searches = [BeamSearch.start(self._intake, prompt, params) for prompt in listed]
        at_once = concurrency_limit or max(1, len(searches))
        for first in range(0, len(searches), at_once):
            while live := [search for search in searches[first : first + at_once] if not search.finished]:
                asked = [search.prompts for search in live]
                found = self.generate([one for beams in asked for one in beams], live[0].one_token, use_tqdm=use_tqdm)
                said = iter(map(next_logprobs, found))
                for search, beams in zip(live, asked, strict=True):
                    search.extend([next(said) for _ in beams])
        return [search.output() for search in searches]

    def get_tokenizer(self) -> Tokenizer | None:
        """Return the tokenizer; None with skip_tokenizer_init."""
        return self._intake.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """Return the parameters of a call that gives none: the model's own, of its generation_config.json."""
        return SamplingParams(**self._intake.sampling)

    def get_stats(self) -> EngineStats:
        """Return the engine's gauges and totals as they are now."""
        return self._check_live().engine.core.stats()

    def reset_prefix_cache(self) -> bool:
        """Forget cached prefixes; returns whether the engine did."""
        self._check_live()
        return self._offline.control(ResetPrefixCache()).ok

    def get_metrics(self) -> list[Any]:
        """Return the metrics that a server has, of this object: Prometheus' families, with `name`, `type` and `samples`."""
        self._check_live()
        return list(self._metrics.collect())

    def apply_model(self, function: Callable[[Any], _T]) -> list[_T]:
        """Call a function with the model, a torch module, between two steps; returns what it returns, of each rank."""
        return self.collective_rpc(lambda worker: function(worker.model))

    def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call a function with the worker in front of `args`, or a named method of it, between two steps.

        Returns what it returns, of each rank; what it raises is raised here. Functions cross no process: with several ranks
        only named methods can be called. timeout: taken and without effect, the engine runs in this process.
        """
        self._check_live()
        if isinstance(method, str):
            arguments = msgspec.msgpack.encode(list(args))
            ack = self._offline.control(Call(method=method, arguments=arguments))
            if not ack.ok:
                raise InvalidRequestError(ack.message, field="method")
            found = msgspec.msgpack.decode(ack.value)
            return found if self._num_ranks > 1 else [found]
        if self._num_ranks > 1:
            raise UnsupportedError("functions cross no process: with several ranks, name a method", field="method")
        results, failures = list[Any](), list[Exception]()

        def call(worker: Any) -> None:
            try:
                results.append(method(worker, *args, **(kwargs or {})))
            except Exception as error:  # noqa: BLE001 - raised where it was called from, not in the worker
                failures.append(error)

        self._offline.control(Apply(function=call))
        if failures:
            raise failures[0]
        return results

    def shutdown(self) -> None:
        """Free the model and its memory; idempotent. Later calls raise EngineDeadError."""
        local, self._local = self._local, None
        if local is not None:
            local.engine.shutdown()
            if local.intake.template is not None:
                local.intake.template.stop()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *exc: object) -> None:
        self.shutdown()

    def __del__(self) -> None:
        self.shutdown()

    def _run(
        self, prompts: Any, params: Any, kind: type[_T], name: str, priority: int | Sequence[int], use_tqdm: ProgressBar
    ) -> Any:
        self._check_live()
        if isinstance(prompts, np.ndarray):
            prompts = prompts.tolist()
        if _is_lazy(prompts):
            if not isinstance(priority, int):
                raise InvalidRequestError("a lazy iterable takes one priority for all", field="priority")
            each = itertools.repeat(params) if isinstance(params, kind) else params
            return self._run_lazily(zip(prompts, each, strict=False), priority, use_tqdm)
        listed: Sequence[Any] = [prompts] if _is_one_prompt(prompts) else list(prompts)
        asked: list[Any] = _one_each(name, params, kind, len(listed))
        jobs = self._offline.check(listed, asked, _one_each("priority", priority, int, len(listed)))
        with progress(use_tqdm, len(jobs), self._metrics) as finished:
            return self._offline.run(jobs, finished)

    def _run_lazily(self, prompts: Iterable[Any], priority: int, use_tqdm: ProgressBar) -> Iterator[Any]:
        with progress(use_tqdm, None, self._metrics) as finished:
            yield from self._offline.stream(prompts, priority, finished)

    def _check_live(self) -> launch.LocalEngine:
        if self._local is None:
            raise EngineDeadError("this LLM was shut down")
        return self._local


class AsyncLLM:
    """A model behind asyncio: every request is a stream. The engine runs in a process of its own, which starts here.

    Takes the options of `LLM`. One object belongs to one event loop. The engine ends with `shutdown()`, or with this
    process, however that ends.
    """

    _process: launch.EngineProcess | None = None

    def __init__(self, model: ModelName = "demo", *, tokenizer: ModelName | None = None, **options: Any) -> None:
        self._config = _config(model, tokenizer, options)
        self._process = launch.start_engine(self._config)
        self._connecting: asyncio.Task[TextService] | None = None

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        cache_salt: str = "",
    ) -> AsyncIterator[RequestOutput]:
        """Stream the answer to one prompt; the last output has `finished`. What one holds, `output_kind` says.

        Leaving the iteration aborts the request. `request_id` is a label for `abort`; two requests may share one.
        """
        service = await self._service()
        params = sampling_params or SamplingParams(**service.sampling)
        stream = await service.generate(
            prompt, params, request_id=request_id, priority=priority, cache_salt=cache_salt, kind=params.output_kind
        )
        async with stream:
            async for output in stream:
                yield output

    async def encode(
        self,
        prompt: Prompt,
        pooling_params: PoolingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
    ) -> AsyncIterator[PoolingRequestOutput]:
        """Give the vector of one prompt, as the one output of a stream. Leaving the iteration aborts the request."""
        service, params = await self._service(), pooling_params or PoolingParams()
        yield await service.encode(prompt, params, request_id=request_id, priority=priority)

    async def beam_search(
        self, prompt: Prompt, params: BeamSearchParams, request_id: str | None = None
    ) -> BeamSearchOutput:
        """Return the likeliest continuations of a prompt, best first."""
        return await (await self._service()).beam_search(prompt, params, request_id=request_id)

    async def abort(self, request_id: str) -> None:
        """Abort every running request with this id; their streams end with finish_reason "abort"."""
        (await self._service()).abort(request_id)

    async def reset_prefix_cache(self) -> bool:
        """Forget cached prefixes; returns whether the engine did."""
        return await (await self._service()).reset_prefix_cache()

    async def get_tokenizer(self) -> Tokenizer | None:
        """Return the tokenizer; None with skip_tokenizer_init."""
        return (await self._service()).tokenizer

    def shutdown(self) -> None:
        """End the engine process; idempotent. Open streams raise EngineDeadError."""
        process, self._process = self._process, None
        if process is None:
            return
        connecting = self._connecting
        if connecting is not None and connecting.done() and not (connecting.cancelled() or connecting.exception()):
            connecting.result().disconnect()
        process.stop()

    def __del__(self) -> None:
        self.shutdown()

    async def _service(self) -> TextService:
        """Return the service in front of the engine; the first call waits until the model is loaded."""
        if self._process is None:
            raise EngineDeadError("this AsyncLLM was shut down")
        if self._connecting is None:
            self._connecting = asyncio.create_task(launch.connect(self._config, self._process))
        # A caller that gives up must not stop the others from waiting.
        return await asyncio.shield(self._connecting)


def _config(model: ModelName, tokenizer: ModelName | None, options: Mapping[str, Any]) -> EngineConfig:
    given: dict[str, Any] = {
        "model": os.fspath(model),
        "tokenizer": None if tokenizer is None else os.fspath(tokenizer),
    }
    if "logits_processors" in options:
        # By name, so that it is the same in every process of the engine.
        named = [
            c if isinstance(c, str) else f"{c.__module__}:{c.__qualname__}" for c in options["logits_processors"] or ()
        ]
        given["logits_processors"] = tuple(named)
    return EngineConfig.from_options({**options, **given})


def _is_lazy(prompts: Any) -> bool:
    """Whether these are prompts of which nobody knows how many there are."""
    return isinstance(prompts, Iterable) and not isinstance(prompts, Sized)


def _is_one_prompt(prompts: Any) -> bool:
    """Whether this is a prompt and not a list of them: a text, a record, or token ids."""
    if isinstance(prompts, (str, Mapping)):
        return True
    if not isinstance(prompts, Sequence):
        raise InvalidRequestError(
            f"prompts must be a prompt or a list of them, not {type(prompts).__name__}", field="prompts"
        )
    return len(prompts) > 0 and isinstance(prompts[0], (int, np.integer))


def _one_each(name: str, given: Any, one: type[_T], count: int) -> list[_T]:
    """Return one value per prompt, from one for all or a list of as many."""
    if isinstance(given, one):
        return [given] * count
    if not isinstance(given, Sequence) or len(given) != count:
        raise InvalidRequestError(f"{name} must be one for all, or one for each of the {count} prompts", field=name)
    return list(given)
