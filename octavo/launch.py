"""The composition root: who is made from what, and in which process.

`build_engine` makes an engine in this process (`LLM`, and the engine process itself). `start_engine` and `connect` put one
into a process of its own with a `TextService` in front (`octavo serve`, `AsyncLLM`). Fronts never import torch.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import gc
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from octavo.base.errors import ConfigError, EngineDeadError, InvalidRequestError, OctavoError
from octavo.base.facts import DeviceFacts
from octavo.base.logging import get_logger
from octavo.checkpoint.open import open_checkpoint
from octavo.checkpoint.record import Checkpoint
from octavo.config.engine import EngineConfig
from octavo.config.model import ModelConfig
from octavo.config.resolve import ResolvedConfig, check_spread, resolve
from octavo.constrain.matcher import Grammars, Vocabulary
from octavo.engine.client import EngineClient
from octavo.engine.executor import Executor, WorkerReport
from octavo.engine.kvcache.geometry import Geometry, solve
from octavo.engine.process import RunningEngine
from octavo.engine.spawn import EngineElsewhere, EngineProcess, Restarts
from octavo.engine.transport.cache_events import CacheEventPublisher
from octavo.frontend.intake import Intake
from octavo.frontend.service import TextService
from octavo.frontend.text.chat import ChatTemplate
from octavo.frontend.text.tokenizer import Tokenizer, load_tokenizer
from octavo.protocol.output import Ready
from octavo.worker.spec import Weights, WorkerSpec

_log = get_logger(__name__)
_WATCH_SECONDS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalEngine:
    """An engine in this process, and what requests to it are checked against."""

    engine: RunningEngine
    intake: Intake


def survey_devices(kind: str = "auto") -> tuple[DeviceFacts, int, tuple[str, ...]]:
    """Return the device that is chosen here, its free bytes, and of the other kinds what there is of them, one line each.

    kind: as `--device` says it. Raises ConfigError if there is none of that kind.
    """
    from octavo.device.registry import detect, devices

    device = detect(kind)
    others: list[str] = []
    for other in devices():
        if other != device.facts.kind:
            try:
                others.append(f"{other}: {detect(other).facts.name}, not chosen")
            except OctavoError as error:
                others.append(f"{other}: {error.message}")
    return device.facts, device.free_memory(), tuple(others)


class _Stages:
    """How long each stage of a start took."""

    def __init__(self) -> None:
        self._began = self._last = time.perf_counter()
        self._taken: list[str] = []

    def done(self, stage: str) -> None:
        now = time.perf_counter()
        self._taken.append(f"{stage} {now - self._last:.2f} s")
        self._last = now

    def log(self) -> None:
        _log.info("engine ready in %.2f s: %s", self._last - self._began, ", ".join(self._taken))


def build_local(config: EngineConfig) -> LocalEngine:
    """Load a model in this process. Raises ConfigError or CheckpointError; nothing stays loaded then."""
    checkpoint = open_checkpoint(config.model)
    text = _open_text(checkpoint)
    engine = build_engine(config, checkpoint)
    intake = _intake(config, checkpoint, text, engine.ready.max_model_len, None)
    alone = config.parallel.num_ranks == 1
    return LocalEngine(engine=engine, intake=dataclasses.replace(intake, takes_functions=alone))


def build_engine(config: EngineConfig, checkpoint: Checkpoint) -> RunningEngine:
    """Load the weights and return the engine that runs them. Raises ConfigError or CheckpointError; nothing stays loaded."""
    stages = _Stages()
    from octavo.engine.core import EngineCore
    from octavo.engine.schedule.limits import ScheduleLimits
    from octavo.engine.schedule.scheduler import Scheduler

    executor, resolved = _open_executor(config, checkpoint)
    stages.done("libraries")
    events = None
    try:
        events = config.cache.events and CacheEventPublisher(config.cache.events)
        geometry, ready, report = _lay_out(config, resolved, executor, stages)
    except BaseException:
        executor.shutdown()
        if events is not None:
            events.close()
        raise
    budget = resolved.max_num_batched_tokens
    if not report.generates and config.schedule.max_num_batched_tokens is None:
        budget = max(budget, ready.max_model_len)  # What becomes a vector is read in one step.
    limits = ScheduleLimits(
        generates=report.generates,
        max_num_seqs=resolved.max_num_seqs,
        max_num_batched_tokens=budget,
        max_model_len=ready.max_model_len,
        policy=config.schedule.scheduling_policy,
        enable_prefix_caching=config.cache.enable_prefix_caching,
        least_shared=config.cache.least_shared_tokens,
        depth=resolved.depth,
        identity=f"{checkpoint.path}:{resolved.dtype}",
    )
    scheduler = Scheduler(geometry, ready.num_pages, limits)
    grammars = Grammars(functools.partial(_vocabulary, checkpoint))
    core = EngineCore(scheduler, executor, events and events.publish, grammars)
    stages.log()
    ends = (executor.shutdown, grammars.close, *((events.close,) if events else ()))
    return RunningEngine(core=core, ready=ready, shutdown=_spare_from_collection(ends))


def _open_executor(config: EngineConfig, checkpoint: Checkpoint) -> tuple[Executor, ResolvedConfig]:
    """Return what will load the model, and what was settled. Ranks know their devices: this process needs no torch then."""
    check_spread(config, checkpoint.facts)
    if config.parallel.num_ranks == 1:
        # Here and not above: they bring torch, which a front must not load.
        from octavo.device.registry import detect
        from octavo.worker.executors.inproc import InprocExecutor

        device = detect(config.device.device).facts
        resolved = resolve(config, checkpoint.facts, device)
        return InprocExecutor(_worker_spec(config, checkpoint, resolved, device.kind)), resolved
    from octavo.worker.executors.multiproc import MultiprocExecutor

    parallel = config.parallel
    executor = MultiprocExecutor(config.device.device, parallel.num_ranks, parallel.distributed_timeout_seconds)
    try:
        device = executor.survey()
        resolved = resolve(config, checkpoint.facts, device)
        executor.start(_worker_spec(config, checkpoint, resolved, device.kind))
    except BaseException:
        executor.shutdown()
        raise
    return executor, resolved


def _worker_spec(config: EngineConfig, checkpoint: Checkpoint, resolved: ResolvedConfig, device: str) -> WorkerSpec:
    return WorkerSpec(
        checkpoint=checkpoint,
        dtype=resolved.dtype,
        max_model_len=resolved.max_model_len,
        max_num_seqs=resolved.max_num_seqs,
        max_num_batched_tokens=resolved.max_num_batched_tokens,
        weights=_weights(config.model),
        kv_cache_memory=config.cache.kv_cache_memory,
        block_size=config.cache.block_size,
        memory_utilization=config.cache.gpu_memory_utilization,
        tensor=config.parallel.tensor_parallel_size,
        pipeline=config.parallel.pipeline_parallel_size,
        spread_experts=config.parallel.enable_expert_parallel,
        device=device,
        enforce_eager=config.device.enforce_eager,
        logits_processors=config.model.logits_processors,
        logprobs_mode=config.model.logprobs_mode,
    )


def _spare_from_collection(ends: Sequence[Callable[[], None]]) -> Callable[[], None]:
    """Let the garbage collector pass over all that is there now; returns what ends this too.

    A collection that looks at every object of the libraries takes 0.1 s, in which the device waits.
    """
    gc.freeze()

    def end() -> None:
        for one in ends:
            one()
        gc.unfreeze()

    return end


def build_from_options(options: bytes) -> RunningEngine:
    """Build what `start_engine` asked for: the factory of the engine process."""
    config = msgspec.msgpack.decode(options, type=EngineConfig)
    return build_engine(config, open_checkpoint(config.model))


def start_engine(config: EngineConfig, num_fronts: int = 1) -> EngineProcess:
    """Start an engine process and return at once, while it loads. It dies with this process."""
    return EngineProcess("octavo.launch:build_from_options", msgspec.msgpack.encode(config), num_fronts)


async def open_service(
    config: EngineConfig, process: EngineProcess | EngineElsewhere, *, max_logprobs: int | None = None
) -> TextService:
    """Return the service in front of an engine that may still load; the process is stopped if that fails.

    max_logprobs: alternatives per token that a request may ask for; None is no limit.
    """
    client = EngineClient(process)
    try:
        # The front reads the tokenizer while the engine reads the weights.
        checkpoint = await asyncio.to_thread(open_checkpoint, config.model)
        text = await asyncio.to_thread(_open_text, checkpoint)
        if text[1] is not None:
            text[1].start()  # The first chat need not wait for it.
    except BaseException:
        await client.close()
        raise
    longest = config.model.max_model_len or checkpoint.facts.max_position
    return TextService(client, _intake(config, checkpoint, text, longest, max_logprobs), config.schedule)


async def connect(
    config: EngineConfig, process: EngineProcess | EngineElsewhere, *, max_logprobs: int | None = None
) -> TextService:
    """Wait until the engine is loaded and return the service in front of it, as `open_service` does."""
    service = await open_service(config, process, max_logprobs=max_logprobs)
    try:
        await service.start()
    except BaseException:
        await service.close()
        raise
    return service


async def keep_running(
    service: TextService,
    process: EngineProcess | EngineElsewhere,
    restarts: Restarts | None,
    ready: Callable[[], None],
) -> None:
    """Wait until the engine is loaded; where the service `restarts`, start it again whenever it dies, until that is cancelled.

    restarts: says when; None: its owner does it. ready: called whenever the engine is. Raises what stopped the first start, and
    EngineDeadError when it is not started again any more.
    """
    await service.start()
    ready()
    while service.restarts:
        error = await service.ended()
        if service.draining:
            return
        delay = 0.0 if restarts is None else restarts.delay()
        if delay is None:
            raise EngineDeadError(f"the engine died too often, at last of this: {error.message}")
        _log.warning("the engine is started again in %g s, because: %s", delay, error.message)
        await asyncio.gather(asyncio.to_thread(process.end), asyncio.sleep(delay))
        while not process.restart():
            await asyncio.sleep(_WATCH_SECONDS)
        service.go_on_with(EngineClient(process))
        with contextlib.suppress(OctavoError):  # Then it is dead again.
            await service.start()
            ready()


async def start_service(config: EngineConfig, *, max_logprobs: int | None = None) -> TextService:
    """Start an engine process and return the service in front of it, once it is loaded."""
    return await connect(config, start_engine(config), max_logprobs=max_logprobs)


_Text = tuple[Tokenizer | None, ChatTemplate | None]


def _open_text(checkpoint: Checkpoint) -> _Text:
    """Return tokenizer and chat template; a model without a template is given ChatML, and the log says so."""
    if checkpoint.tokenizer is None:
        return None, None
    tokenizer = load_tokenizer(checkpoint.tokenizer)
    if checkpoint.chat_template is None:
        _log.warning("%s has no chat template: chats are written as ChatML", checkpoint.name)
    return tokenizer, ChatTemplate(checkpoint.chat_template, tokenizer.special_tokens)


def _vocabulary(checkpoint: Checkpoint) -> Vocabulary:
    """Read what grammars are checked against."""
    assert checkpoint.tokenizer is not None, "requests with grammars were refused"
    tokenizer, facts = load_tokenizer(checkpoint.tokenizer), checkpoint.facts
    given = (*facts.eos_token_ids, tokenizer.eos_token_id)
    ends = [end for end in given if end is not None and end < facts.vocab_size]
    if not ends:
        raise InvalidRequestError("this model has no token that ends an answer", field="structured_outputs")
    return Vocabulary(
        tokens=[tokenizer.token_bytes(index) for index in range(facts.vocab_size)],
        special_token_ids=list(tokenizer.markers.values()),
        ends=ends,
        eos_token_id=ends[0],
        num_ids=facts.vocab_size,
    )


def _intake(
    config: EngineConfig, checkpoint: Checkpoint, text: _Text, max_model_len: int, max_logprobs: int | None
) -> Intake:
    tokenizer, template = text
    return Intake(
        facts=checkpoint.facts,
        max_model_len=max_model_len,
        tokenizer=tokenizer,
        template=template,
        max_logprobs=max_logprobs,
        sampling=checkpoint.sampling,
        reports_logprobs=config.model.logprobs_mode.endswith("logprobs"),
    )


def _weights(model: ModelConfig) -> Weights:
    """Who asks for float32 wants all of it: nothing is rounded then."""
    exact = model.dtype == "float32"
    return Weights(load_format=model.load_format, seed=model.seed, quantization=model.quantization, exact=exact)


def _lay_out(
    config: EngineConfig, resolved: ResolvedConfig, executor: Executor, stages: _Stages
) -> tuple[Geometry, Ready, WorkerReport]:
    """Load the weights, cut the memory that is left into pages and log what was decided."""
    report = executor.load()
    stages.done("weights")
    geometry = solve(report.layers, config.cache.block_size, config.cache.mamba_block_size)
    num_pages = config.cache.num_pages or report.num_pages(geometry)
    max_model_len, fit = fit_context(config, resolved.max_model_len, geometry, num_pages)
    executor.allocate(geometry, num_pages)
    stages.done("pages")
    decisions = (*resolved.decisions, *report.decisions, *geometry.describe(), fit)
    for decision in decisions:
        _log.info("%s", decision)
    ready = Ready(max_model_len=max_model_len, num_pages=num_pages, page_bytes=geometry.page_bytes, decisions=decisions)
    return geometry, ready, report


def fit_context(config: EngineConfig, max_model_len: int, geometry: Geometry, num_pages: int) -> tuple[int, str]:
    """Return the longest context that is served, and why.

    A `max_model_len` that was asked for must fit, or it is a ConfigError with the largest one that does; one that is only
    the model's own is lowered. With an exact number of pages it is left alone: requests that never fit are refused one by one.
    """
    needed = geometry.pages_of(max_model_len)
    arithmetic = f"{max_model_len} tokens take {needed} pages of {geometry.page_bytes} bytes, the pool has {num_pages}"
    if needed == 0:
        return max_model_len, f"{max_model_len} tokens a sequence, of which nothing is kept"
    if needed <= num_pages:
        return max_model_len, f"{arithmetic}: {num_pages / needed:.1f} sequences of full length"
    if config.cache.num_pages is not None:
        return max_model_len, f"{arithmetic}, as asked for: longer requests are refused"
    largest = bisect_right(range(max_model_len), num_pages, key=geometry.pages_of) - 1
    if config.model.max_model_len is None and largest > 1:
        return largest, f"max_model_len lowered to {largest}, the largest that fits: {arithmetic}"
    lower = f"set max_model_len to at most {largest}, or " if largest > 1 else ""
    raise ConfigError(
        f"not one sequence fits: {arithmetic}; {lower}give the pool more memory "
        f"(kv_cache_memory of at least {needed * geometry.page_bytes})",
        field="max_model_len",
    )
