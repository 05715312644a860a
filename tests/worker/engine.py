"""A whole engine on a small checkpoint, without text: scheduler, worker, and what came of every request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from octavo.checkpoint.open import open_checkpoint
from octavo.config.model import ModelConfig
from octavo.engine.core import EngineCore
from octavo.engine.kvcache.geometry import solve
from octavo.engine.schedule.limits import ScheduleLimits
from octavo.engine.schedule.scheduler import Scheduler
from octavo.protocol.arrays import int32
from octavo.protocol.output import EngineStats, Finish, TokenDelta
from octavo.protocol.pooling import PoolingParams
from octavo.protocol.request import Request
from octavo.protocol.sampling import SamplingParams
from octavo.worker.executors.inproc import InprocExecutor
from octavo.worker.spec import WorkerSpec

MAX_MODEL_LEN, NUM_SLOTS = 128, 4


class SmallEngine:
    """Greedy, float32, 128 tokens, four slots. num_pages: as many as four whole sequences take if not given.

    ids, logprobs: by (key, choice). cached, vectors, finishes: by key.
    """

    def __init__(
        self,
        folder: Path,
        *,
        num_pages: int | None = None,
        interval: int | None = None,
        budget: int = 64,
        **limits: Any,
    ) -> None:
        checkpoint = open_checkpoint(ModelConfig(model=str(folder), skip_tokenizer_init=True))
        spec = WorkerSpec(
            checkpoint=checkpoint, dtype="float32", max_model_len=MAX_MODEL_LEN, max_num_seqs=NUM_SLOTS, threads=1
        )
        self._executor = InprocExecutor(spec)
        self.report = self._executor.load()
        self.geometry = solve(self.report.layers, None, interval)
        num_pages = num_pages or max(1, 8 * self.geometry.pages_of(96))
        self._executor.allocate(self.geometry, num_pages)
        known = ScheduleLimits(
            max_num_seqs=NUM_SLOTS,
            max_num_batched_tokens=budget,
            max_model_len=MAX_MODEL_LEN,
            generates=self.report.generates,
            **limits,
        )
        self._core = EngineCore(Scheduler(self.geometry, num_pages, known), self._executor)
        self.ids: dict[tuple[int, int], list[int]] = {}
        self.logprobs: dict[tuple[int, int], list[float]] = {}
        self.cached: dict[int, int] = {}
        self.vectors: dict[int, np.ndarray] = {}
        self.finishes: dict[int, Finish] = {}

    def ask(
        self,
        key: int,
        prompt: list[int],
        count: int = 0,
        *,
        n: int = 1,
        encoder: list[int] | None = None,
        pooling: PoolingParams | None = None,
    ) -> None:
        """Ask for `count` tokens, or for a vector."""
        request = Request(
            key=key,
            tokens=int32(prompt),
            sampling=SamplingParams(temperature=0.0, max_tokens=count or None, n=n, logprobs=1),
            stop_ids=(),
            max_tokens=count,
            seed=0,
            encoder_tokens=None if encoder is None else int32(encoder),
            pooling=pooling,
        )
        self._core.handle(request)

    def run(self) -> EngineStats:
        """Serve everything that was asked for."""
        while self._core.busy:
            delta = self._core.step()
            if delta is not None:
                self._take(delta)
        return self._core.stats()

    def close(self) -> None:
        """Free the worker."""
        self._executor.shutdown()

    def _take(self, delta: TokenDelta) -> None:
        for row, (key, choice) in enumerate(zip(delta.keys.tolist(), delta.choices.tolist(), strict=True)):
            of_row = slice(delta.offsets[row], delta.offsets[row + 1])
            self.ids.setdefault((key, choice), []).extend(delta.ids[of_row].tolist())
            assert delta.logprobs is not None
            self.logprobs.setdefault((key, choice), []).extend(delta.logprobs.chosen[of_row].tolist())
        for row, key in enumerate(delta.vector_keys.tolist()):
            assert delta.vectors is not None
            self.vectors[key] = delta.vectors[row].copy()
        for start in delta.starts:
            self.cached.setdefault(start.key, start.num_cached)
        for finish in delta.finishes:
            self.finishes[finish.key] = finish
