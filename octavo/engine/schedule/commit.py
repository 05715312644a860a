"""Taking a result: tokens into the slot table, and the news that clients get of it."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np

from octavo.engine.schedule.slots import SlotTable
from octavo.protocol.arrays import BoolArray, Float32Array, Int32Array, Int64Array, int64
from octavo.protocol.control import Ack
from octavo.protocol.output import EngineStats, Finish, FinishReason, PromptScores, Start, TokenDelta
from octavo.protocol.step import StepPlan, StepResult, TokenLogprobs

Ended = tuple[int, FinishReason, int | None, str]
# Leads the grammar of a slot on: see `Scheduler`.
Follow = Callable[[int, int, StepResult, Int32Array, list[Ended]], None]


class Tally:
    """Totals, and what clients have not been told yet. vectors, scores: of one committed step, the vectors with their keys."""

    def __init__(self) -> None:
        self.prefix_queries = 0
        self.prefix_hits = 0
        self.num_preemptions = 0
        self.prompt_tokens = 0
        self.generated_tokens = 0
        self.failed_rows = 0
        self.starts: list[Start] = []
        self.finishes: list[Finish] = []
        self.acks: list[Ack] = []
        self.changed = False
        self._tokens: TokenDelta | None = None
        self.vectors: tuple[Int64Array, Float32Array] | None = None
        self.scores: PromptScores | None = None

    @property
    def has_news(self) -> bool:
        """Whether there is anything to tell."""
        news = self._tokens or self.vectors or self.scores
        return bool(news or self.starts or self.finishes or self.acks or self.changed)

    def tokens(self, delta: TokenDelta) -> None:
        """Note the tokens of one committed step; they are taken before the next one."""
        assert self._tokens is None
        self._tokens = delta
        self.generated_tokens += len(delta.ids)

    def take(self, stats: Callable[[], EngineStats]) -> TokenDelta:
        """Return all news with current stats, and forget it."""
        news = msgspec.structs.replace(
            self._tokens or TokenDelta(),
            vector_keys=int64() if self.vectors is None else self.vectors[0],
            vectors=None if self.vectors is None else self.vectors[1],
            scores=self.scores,
            starts=tuple(self.starts),
            finishes=tuple(self.finishes),
            acks=tuple(self.acks),
            stats=stats(),
        )
        self.starts, self.finishes, self.acks, self._tokens, self.changed = [], [], [], None, False
        self.vectors = self.scores = None
        return news


def commit_rows(
    table: SlotTable, plan: StepPlan, generations: Int32Array, result: StepResult, tally: Tally, follow: Follow
) -> list[Ended]:
    """Write a result into the slot table and the tally; returns the slots that ended with it.

    Rows of slots whose generation has changed since the plan are stale and count for nothing. What a row yields past its
    end counts for nothing either.
    """
    live = table.generation[plan.slots] == generations
    slots, counts = plan.slots[live], plan.counts[live]
    table.in_flight[slots] -= 1
    table.ahead[slots] -= counts
    partial = live & ~plan.samples
    table.computed[plan.slots[partial]] += plan.counts[partial]
    if result.scores is not None:
        _scored_rows(table, plan, live, result.scores, tally)
    pooled = _pooled_rows(table, plan, live, result, tally) if len(plan.pools) else []
    sampled = np.flatnonzero(plan.samples).astype(np.int32)
    slots, live = plan.slots[sampled], live[sampled]
    ended = pooled + _failed_rows(plan, sampled, live, result, tally)
    firsts = table.length[slots] - table.num_prompt[slots]
    kept = _append(table, slots, live.copy(), result, ended)
    for place in np.searchsorted(sampled, plan.masked).tolist() if len(plan.masked) else ():
        if live[place]:
            follow(int(slots[place]), place, result, kept, ended)
    table.computed[slots[live]] = table.length[slots[live]] - 1
    _tell(table, slots, firsts, kept, result, tally)
    return ended


def _scored_rows(table: SlotTable, plan: StepPlan, live: BoolArray, found: TokenLogprobs, tally: Tally) -> None:
    """Hand out the log-probabilities of prompts. The last token of a prompt says nothing of the prompt."""
    starts, slots = plan.starts[plan.scores], plan.slots[plan.scores]
    numbers = np.minimum(plan.counts[plan.scores], np.maximum(table.num_prompt[slots] - 1 - starts, 0))
    keep = live[plan.scores]
    offsets = np.zeros(int(keep.sum()) + 1, np.int32)
    np.cumsum(numbers[keep], out=offsets[1:])
    logprobs = found if keep.all() else found.select(np.repeat(keep, numbers))
    keys, firsts = table.key[slots[keep]], starts[keep] + 1
    tally.scores = PromptScores(keys=keys, firsts=firsts, offsets=offsets, logprobs=logprobs)


def _pooled_rows(table: SlotTable, plan: StepPlan, live: BoolArray, result: StepResult, tally: Tally) -> list[Ended]:
    """Hand out the vectors of the plan's rows that give one; each ends its sequence."""
    keep = live[plan.pools].copy()
    ended = _failed_rows(plan, plan.pools, keep, result, tally)
    slots = plan.slots[plan.pools[keep]]
    if len(slots):
        assert result.vectors is not None
        tally.vectors = table.key[slots], result.vectors[keep]
    return ended + [(slot, "stop", None, "") for slot in slots.tolist()]


def _failed_rows(plan: StepPlan, sampled: Int32Array, live: BoolArray, result: StepResult, tally: Tally) -> list[Ended]:
    ended: list[Ended] = []
    for error in result.errors:
        row = int(np.searchsorted(sampled, error.row))
        if row < len(sampled) and sampled[row] == error.row and live[row]:
            live[row] = False
            ended.append((int(plan.slots[error.row]), "error", None, error.message))
            tally.failed_rows += 1
    return ended


def _append(
    table: SlotTable, slots: Int32Array, active: BoolArray, result: StepResult, ended: list[Ended]
) -> Int32Array:
    """Append every row's tokens up to its end; returns how many each row kept, int32 [s]."""
    numbers = np.diff(result.offsets)
    kept = np.zeros(len(slots), np.int32)
    for step in range(int(numbers.max(initial=0))):
        rows = np.flatnonzero(active & (numbers > step))
        if len(rows) == 0:
            break
        current = slots[rows]
        stops = table.append(current, result.ids[result.offsets[rows] + step])
        kept[rows] += 1
        done = stops | (table.length[current] >= table.limit[current])
        for row, stop in zip(rows[done].tolist(), stops[done].tolist(), strict=True):
            active[row] = False
            stop_id = int(result.ids[result.offsets[row] + step]) if stop else None
            ended.append((int(slots[row]), "stop" if stop else "length", stop_id, ""))
    return kept


def _tell(
    table: SlotTable, slots: Int32Array, firsts: Int32Array, kept: Int32Array, result: StepResult, tally: Tally
) -> None:
    rows = np.flatnonzero(kept)
    if len(rows) == 0:
        return
    ids, logprobs = result.ids, result.logprobs
    if int(kept.sum()) != len(ids):
        numbers = np.diff(result.offsets)
        row_of = np.repeat(np.arange(len(kept)), numbers)
        keep = np.arange(len(ids)) - result.offsets[row_of] < kept[row_of]
        ids, logprobs = ids[keep], None if logprobs is None else logprobs.select(keep)
    offsets = np.zeros(len(rows) + 1, np.int32)
    np.cumsum(kept[rows], out=offsets[1:])
    current = slots[rows]
    tally.tokens(
        TokenDelta(
            keys=table.key[current],
            choices=table.choice[current],
            firsts=firsts[rows],
            offsets=offsets,
            ids=ids,
            logprobs=logprobs,
        )
    )
