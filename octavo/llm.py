"""The Python face: `LLM` for batches, in this process; `AsyncLLM` for streams, with the engine in a process of its own.

Names and arguments are those that scripts written for vLLM use.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Generator, Mapping, Sequence
from typing import Any, TypeVar

from octavo import launch
from octavo.base.errors import EngineDeadError, InvalidRequestError, UnsupportedError
from octavo.config.engine import EngineConfig
from octavo.frontend.beams import BeamSearch, BeamSearchOutput, BeamSearchParams, next_logprobs
from octavo.frontend.intake import Prompt
from octavo.frontend.offline import OfflineEngine
from octavo.frontend.service import TextService
from octavo.frontend.text.tokenizer import Tokenizer
from octavo.protocol.control import ResetPrefixCache
from octavo.protocol.output import EngineStats, RequestOutput
from octavo.protocol.sampling import SamplingParams

Message = Mapping[str, Any]
# A switch, or something called like `tqdm.tqdm`.
ProgressBar = bool | Callable[..., Any]
ModelName = str | os.PathLike[str]

_T = TypeVar("_T")


class LLM:
    """A model, offline: prompts in, answers out, in their order. The engine runs in this process.

    model: a folder, a .gguf file, a hub name in the local cache, or "demo". tokenizer: its folder or file, if it is not the
    model's own. Other options are the engine's (`max_model_len=`, `max_num_seqs=`, ...; `octavo serve --help` lists
    them); an unknown one raises ConfigError with the nearest right name. Also a context manager. No global random state
    is read or changed. Calls from several threads run one after the other.
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

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: ProgressBar = True,
        priority: int | Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Complete prompts; returns one output per prompt, in their order.

        prompts: a text, token ids, {"prompt": ...} or {"prompt_token_ids": [...]}, or a list of those. sampling_params and
        priority: one for all, or one per prompt. All prompts are checked before any is queued: an InvalidRequestError
        names the first bad one, and nothing has run. What the engine refuses later (it can never fit its pages) is in that
        prompt's own output: finish_reason "error" and `error`.
        """
        self._check_live()
        listed: Sequence[Any] = [prompts] if _is_one_prompt(prompts) else list(prompts)
        params = _one_each(
            "sampling_params", sampling_params or self.get_default_sampling_params(), SamplingParams, len(listed)
        )
        jobs = self._offline.check(listed, params, _one_each("priority", priority or 0, int, len(listed)))
        with _progress(use_tqdm, len(jobs)) as finished:
            return self._offline.run(jobs, finished)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: ProgressBar = True,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Message] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation or a list of them, rendered with the model's chat template (or `chat_template`)."""
        if continue_final_message:
            raise UnsupportedError("continue_final_message is not supported", field="continue_final_message")
        conversations: Any = [messages] if messages and isinstance(messages[0], Mapping) else messages
        prompts: list[Prompt] = [
            self._intake.chat(
                conversation,
                chat_template=chat_template,
                add_generation_prompt=add_generation_prompt,
                tools=tools,
                template_kwargs=chat_template_kwargs,
            )
            for conversation in conversations
        ]
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm)

    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
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
        return self._offline.control(ResetPrefixCache())

    def shutdown(self) -> None:
        """Free the model and its memory; idempotent. Later calls raise EngineDeadError."""
        local, self._local = self._local, None
        if local is not None:
            local.engine.shutdown()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *exc: object) -> None:
        self.shutdown()

    def __del__(self) -> None:
        self.shutdown()

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
        if (
            connecting is not None
            and connecting.done()
            and not connecting.cancelled()
            and connecting.exception() is None
        ):
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


def _is_one_prompt(prompts: Any) -> bool:
    """Whether this is a prompt and not a list of them: a text, a record, or token ids."""
    if isinstance(prompts, (str, Mapping)):
        return True
    if not isinstance(prompts, Sequence):
        raise InvalidRequestError(
            f"prompts must be a prompt or a list of them, not {type(prompts).__name__}", field="prompts"
        )
    return len(prompts) > 0 and isinstance(prompts[0], int)


def _one_each(name: str, given: Any, one: type[_T], count: int) -> list[_T]:
    """Return one value per prompt, from one for all or a list of as many."""
    if isinstance(given, one):
        return [given] * count
    if not isinstance(given, Sequence) or len(given) != count:
        raise InvalidRequestError(f"{name} must be one for all, or one for each of the {count} prompts", field=name)
    return list(given)


@contextlib.contextmanager
def _progress(use_tqdm: ProgressBar, total: int) -> Generator[Callable[[RequestOutput], None]]:
    """Show a bar of finished prompts, with the speed in tokens; yields what has to be called for each."""
    if use_tqdm is False or total == 0:
        yield lambda output: None
        return
    if use_tqdm is True:
        from tqdm.auto import tqdm as make_bar
    else:
        make_bar = use_tqdm
    bar = make_bar(total=total, desc="Prompts", dynamic_ncols=True)
    num_tokens = 0

    def finished(output: RequestOutput) -> None:
        nonlocal num_tokens
        num_tokens += sum(len(choice.token_ids) for choice in output.outputs)
        seconds = bar.format_dict["elapsed"] or 1e-9
        bar.set_postfix_str(f"{num_tokens / seconds:.1f} output tokens/s", refresh=False)
        bar.update(1)

    try:
        yield finished
    finally:
        bar.close()
