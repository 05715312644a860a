"""Runs plans: everything a rank does in a step, in one order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from octavo.base.naming import unknown_name
from octavo.device.base import Device
from octavo.device.registry import detect
from octavo.engine.executor import WorkerReport
from octavo.engine.kvcache.geometry import Geometry
from octavo.nn.decoder import EncoderDecoder
from octavo.nn.parallel.collectives import broadcast
from octavo.nn.parallel.mesh import Mesh
from octavo.protocol.arrays import Int32Array, int32
from octavo.protocol.control import Ack, Apply, Call, Control
from octavo.protocol.pooling import PoolingParams
from octavo.protocol.step import Masks, RowError, StepPlan, StepResult, TokenLogprobs
from octavo.worker.batch import (
    Batch,
    StepRows,
    StepShape,
    make_batch,
    make_encoder_batch,
    plan_rows,
    shape_of,
    void_rows,
)
from octavo.worker.graphs import Recorded, StepGraphs
from octavo.worker.loader.assemble import AssembledModel, assemble
from octavo.worker.memory import Ledger, check_pool, pool_bytes
from octavo.worker.pages import PagePool
from octavo.worker.pooling import pool
from octavo.worker.results import Finish, Pending
from octavo.worker.sampling.logprobs import prompt_logprobs, sampled_logprobs
from octavo.worker.sampling.processors import load_processors
from octavo.worker.sampling.rows import SamplingBatch, SlotArray
from octavo.worker.sampling.sampler import RowMasks, sample
from octavo.worker.slots import Slots
from octavo.worker.spec import WorkerSpec
from octavo.worker.staging import Staging
from octavo.worker.warmup import Warmup, why_no_graphs

Assemble = Callable[..., AssembledModel]
# An empty msgpack list.
_NO_ARGUMENTS = b"\x90"
# Why a row has no token, by whether the model's logits were finite.
_WHY = {
    True: "no token is left to choose from: what the request forbids or allows excludes them all",
    False: "the model's logits are not finite",
}


class ModelRunner:
    """One rank's model, pages and slots. `assemble` replaces the loader, in tests.

    device: of this rank, found if it is not given. meet: joins the other ranks; what that takes of the device is accounted for.

    The rank that samples gives its tokens to the others of its stage in the same step; earlier stages `learn` them later.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        assemble: Assemble = assemble,
        *,
        device: Device | None = None,
        meet: Callable[[], Mesh] = Mesh,
    ) -> None:
        self.spec = spec
        self.device = device or detect(spec.device)
        self.ledger = Ledger(self.device)
        self.mesh = meet()
        if self.mesh.groups:
            self.ledger.charge("ranks")
        self._share = broadcast(self.mesh.tensor)
        # Of plans whose tokens this stage has not learnt.
        self._unknown: dict[int, SamplingBatch] = {}
        self._held: _Held | None = None
        self._assemble = assemble
        self._graphs: StepGraphs | None = None

    def load(self) -> WorkerReport:
        """Load the model; report what its layers keep and how many bytes the page pool may take."""
        spec, facts = self.spec, self.device.facts
        loaded = self._assemble(
            spec.checkpoint,
            dtype=spec.dtype,
            device=self.device,
            max_model_len=spec.max_model_len,
            weights=spec.weights,
            mesh=self.mesh,
        )
        # Ranks may share a memory: it is measured once all have what they need.
        self.mesh.any(False, self.device.torch_device)
        self.ledger.charge("weights")
        self.model, self._kernels = loaded.model, loaded.kernels
        self._no_graphs = why_no_graphs(spec, facts, loaded)
        self._warmup = Warmup(spec, self.device, loaded, self.mesh, graphs=self._no_graphs is None)
        self._others = self._warmup.kept_back()
        self.ledger.charge("workspace")
        free_bytes, decisions = pool_bytes(
            spec,
            loaded.layers,
            kind=facts.kind,
            free=self.device.free_memory(),
            total=facts.total_memory,
            others=self._others,
        )
        notes = (
            self._no_graphs or "decode steps are replayed as graphs",
            *(f"ranks: {g.how}" for g in self.mesh.groups),
        )
        return WorkerReport(
            layers=loaded.layers,
            free_bytes=free_bytes,
            decisions=(*loaded.decisions, *decisions, *notes),
            generates=loaded.generates,
        )

    def allocate(self, geometry: Geometry, num_pages: int) -> None:
        """Make the page pool and the slots, and record the steps that are replayed."""
        spec, device = self.spec, self.device
        if device.facts.kind != "cpu":
            check_pool(num_pages, geometry.page_bytes, free=device.free_memory(), others=self._others)
        self.pool = PagePool(geometry, num_pages, self.device, self._kernels.page_copy)
        self.ledger.charge("pool")
        vocab_size, size = spec.checkpoint.facts.vocab_size, spec.max_num_seqs
        processors = load_processors(spec.logits_processors, vocab_size, size, self.device.torch_device)
        self.slots = Slots(size, spec.max_model_len, vocab_size, self.pool, processors)
        self._staging = Staging(self.device, 4 * (spec.max_num_seqs + 1))
        self.ledger.charge("slots")
        if self._no_graphs is None:
            program = replace(self._warmup.program, slots=self.slots, pool=self.pool, staging=self._staging)
            self._graphs = StepGraphs(
                self.device, program, self._others.get("graphs", 0), budget=spec.max_num_batched_tokens
            )
            self._graphs.record_first()
            self.ledger.charge("graphs")
        self._warmup.compile_rest()
        del self._warmup

    def idle(self) -> None:
        """Record another step while nothing is to be done."""
        if self._graphs is not None:
            self._graphs.record_next()

    def execute(self, plan: StepPlan) -> StepResult:
        """Launch a plan that has no masked rows and wait for its result."""
        return self.launch(plan).result()

    @property
    def waits(self) -> bool:
        """Whether the last plan waits for its masks."""
        return self._held is not None

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> Pending:
        """Queue everything a plan says, in order: slots, copies, transfers, controls, encoder, rows, copies.

        What rows sample is left to `mask` if some of them wait for that; then the result is there only after it.
        """
        assert self._held is None, "a plan came before the masks of the last"
        changes = self.slots.stage(plan)
        rows = self._rows(plan)
        found = (
            None if rows is None or plan.dummy or len(plan.pools) or len(plan.scores) else self._graph_for(rows, plan)
        )
        numbers, shape, picked = np.zeros(0, np.int64), None, list[np.ndarray]()
        if rows is not None:
            shape = shape_of(rows, self.slots, self.pool) if found is None else found[0]
            numbers = rows.numbers(shape, self.slots.void)
            picked = [] if rows.all_sample else [rows.sampling]
        staged = self._staging.send(numbers, [*changes, *picked])
        self.slots.apply(plan, staged[: len(changes)])
        self.pool.copy(plan.copies_before)
        # No connector can fill a page yet: the engine computes what it hoped to fetch.
        failed = tuple(transfer.ticket for transfer in plan.transfers)
        acks = tuple(self._control(control) for control in plan.controls)
        self._encode(plan)
        finish: Finish = lambda: StepResult(plan=plan.id)  # noqa: E731
        if rows is not None and shape is not None:
            index = staged[-1] if picked else None
            recorded = None if found is None else found[1]
            finish = (
                self._run(
                    plan, rows, make_batch(self._staging.fixed[: len(numbers)], shape, self.slots, self.pool), index
                )
                if recorded is None
                else self._replay(plan, rows, recorded, index)
            )
        self.pool.copy(plan.copies_after)
        pending = Pending(self.device.record(), lambda: msgspec.structs.replace(finish(), failed=failed, acks=acks))
        if self._held is not None:
            self._held.pending = pending
        return pending

    @torch.inference_mode()
    def mask(self, masks: Masks) -> Pending:
        """Queue what the last plan left to do until its masks have come; returns the same as `launch` did."""
        held, self._held = self._held, None
        assert held is not None and held.pending is not None and held.plan.id == masks.plan
        rows = np.searchsorted(held.batch.sampling, masks.rows)
        whole = len(rows) == len(held.batch.sampling)
        index = None if whole else self._staging.bring(rows.astype(np.int64).view(np.uint8)).view(torch.int64)
        found = RowMasks(rows=index, bits=self._staging.bring(masks.bits)) if len(rows) else None
        held.finish = self._choose(held.plan, held.batch, held.logits, found)
        held.pending.event = self.device.record()
        return held.pending

    def _rows(self, plan: StepPlan) -> StepRows | None:
        if plan.dummy:
            count = max(plan.shape, len(plan.slots), 1)
            return void_rows(count, count, 1)
        return plan_rows(plan, self.slots) if len(plan.slots) else None

    def _graph_for(self, rows: StepRows, plan: StepPlan) -> tuple[StepShape, Recorded | None] | None:
        if self._graphs is None:
            return None
        ending = "logits" if len(plan.masked) else self.slots.sampling.ending(rows.slots[rows.sampling])
        return self._graphs.find(rows, ending)

    def _encode(self, plan: StepPlan) -> None:
        """Run the encoder over the inputs of new sequences."""
        new = [admission for admission in plan.admissions if len(admission.encoder_tokens)]
        if new:
            model: EncoderDecoder = self.model  # pyright: ignore[reportAssignmentType]
            model.encode(*make_encoder_batch(new, self.slots, self.pool))

    def _replay(self, plan: StepPlan, rows: StepRows, recorded: Recorded, index: Tensor | None) -> Finish:
        """Do a step that was recorded, and sample where it did not. index: int64 [S], the rows that sample if not all do."""
        recorded.graph.replay()
        outputs = recorded.outputs
        if outputs.chosen is None:
            sampling = _sampling(rows, outputs.targets, outputs.lengths, index)
            if outputs.logits is None:
                return self._put_off(plan, sampling)
            return self._sample(plan, sampling, _picked(outputs.logits, rows, index))
        self.slots.advance(rows.slots[rows.sampling])
        if self.mesh.tensor.rank:
            return lambda: StepResult(plan=plan.id)
        chosen = self._staging.fetch(outputs.chosen)
        return lambda: _tokens_of(plan, rows.sampling, chosen.numpy()[:, rows.sampling])

    def _run(self, plan: StepPlan, rows: StepRows, batch: Batch, index: Tensor | None) -> Finish:
        """Compute and sample the plan's rows. index: int64 [S], the rows that sample if not all do."""
        hidden = self.model.forward(batch.ids, batch.context)
        if plan.dummy:
            return lambda: StepResult(plan=plan.id)
        # Scores first: tokens may wait for masks on the rank that samples, and all ranks meet in one order.
        scores = self._scores(plan, rows, hidden) if len(plan.scores) and self.mesh.ends else None
        tokens = self._tokens(plan, rows, batch, hidden, index)
        if scores is not None:
            return lambda: msgspec.structs.replace(tokens(), scores=scores)
        if len(plan.pools) and self.mesh.samples:
            return self._with_vectors(plan, rows, hidden, tokens)
        return tokens

    def _tokens(self, plan: StepPlan, rows: StepRows, batch: Batch, hidden: Tensor, index: Tensor | None) -> Finish:
        """Sample the rows that sample. hidden: [T, N]."""
        if len(rows.sampling) == 0:
            return lambda: StepResult(plan=plan.id)
        sampling = _sampling(rows, batch.targets, batch.lengths, index)
        if not self.mesh.ends:
            return self._put_off(plan, sampling)
        return self._sample(plan, sampling, self.model.compute_logits(hidden[_picked(batch.last, rows, index)]))

    def _put_off(self, plan: StepPlan, sampling: SamplingBatch) -> Finish:
        """Keep what is needed to learn the plan's tokens: the next plans' numbers take the place of these."""
        if len(sampling.sampling):
            kept = replace(sampling, targets=sampling.targets.clone(), positions=sampling.positions.clone())
            self._unknown[plan.id] = kept
        return lambda: StepResult(plan=plan.id)

    @torch.inference_mode()
    def learn(self, result: StepResult) -> None:
        """Append what an earlier plan gave, on a stage before the last; nothing happens where it is known."""
        sampling = self._unknown.pop(result.plan, None)
        if sampling is None:
            return
        ok = np.diff(result.offsets) > 0
        ids = np.zeros(len(ok), np.int64)
        ids[ok] = result.ids
        ids, ok = self._staging.send(np.zeros(0, np.int64), [ids, ok])
        self._append(sampling, ids, ok.bool())

    def _append(self, batch: SamplingBatch, ids: Tensor, ok: Tensor) -> None:
        self.slots.append(batch.targets, batch.positions, ids, ok)
        self.slots.advance(batch.slots)

    def _sample(self, plan: StepPlan, batch: SamplingBatch, logits: Tensor) -> Finish:
        """Choose tokens, at once or when their masks have come. logits: float32 [S, V]."""
        if len(plan.masked) and self.mesh.samples:
            held = self._held = _Held(plan, batch, logits)
            return lambda: StepResult(plan=plan.id) if held.finish is None else held.finish()
        return self._choose(plan, batch, logits, None)

    def _choose(self, plan: StepPlan, batch: SamplingBatch, logits: Tensor, masks: RowMasks | None) -> Finish:
        """Choose tokens, append them to their slots and bring them to the host."""
        if not self.mesh.samples:
            shared = self._share(torch.empty((2, len(logits)), dtype=torch.int64, device=logits.device))
            self._append(batch, shared[0], shared[1].bool())
            return lambda: StepResult(plan=plan.id)
        sampled = sample(logits, self.slots.sampling, batch, self._kernels.draw, masks, self._kernels.likeliest)
        self._share(torch.stack((sampled.ids, sampled.ok)))
        self._append(batch, sampled.ids, sampled.ok)
        # A row that failed though the model's own logits were sound was left without a choice by its request.
        sound = sampled.ok if sampled.logits is logits else logits.amax(1).isfinite()
        chosen = self._staging.fetch(torch.stack((sampled.ids, sampled.ok, sound)))
        if (self.slots.sampling.num_logprobs[batch.slots] < 0).all():
            return lambda: _tokens_of(plan, batch.sampling, chosen.numpy())
        mode, fetch = self.spec.logprobs_mode, self._staging.fetch
        logprobs = sampled_logprobs(logits, sampled, self.slots.sampling, batch, mode, fetch)
        return lambda: msgspec.structs.replace(
            _tokens_of(plan, batch.sampling, chosen.numpy()), logprobs=logprobs(chosen[1].numpy() > 0)
        )

    def _scores(self, plan: StepPlan, rows: StepRows, hidden: Tensor) -> TokenLogprobs | None:
        """Return the log-probabilities of the prompts' tokens behind those of the plan's `scores`. hidden: [T, N]."""
        kept, slots = self.slots.sampling, rows.slots[plan.scores]
        starts = rows.starts[plan.scores]
        numbers = np.minimum(plan.counts[plan.scores], np.maximum(kept.num_prompt[slots] - 1 - starts, 0))
        within = np.arange(numbers.sum()) - np.repeat(numbers.cumsum() - numbers, numbers)
        firsts = rows.query_starts[plan.scores]
        behind = np.repeat(starts, numbers) + within + 1
        places, owners, positions = (
            torch.from_numpy(part).to(hidden.device)
            for part in (np.repeat(firsts, numbers) + within, np.repeat(slots, numbers), behind)
        )
        return prompt_logprobs(
            self.model.compute_logits,
            hidden[places],
            kept.history[owners, positions].cpu().numpy(),
            np.repeat(kept.num_prompt_logprobs[slots], numbers) if self.mesh.samples else np.full(len(within), -1),
            norm=self.spec.logprobs_mode.endswith("logprobs"),
            vocab_size=kept.vocab_size,
        )

    def _with_vectors(self, plan: StepPlan, rows: StepRows, hidden: Tensor, tokens: Finish) -> Finish:
        """Add the vectors of the rows that pool. hidden: [T, N]."""
        starts, vectors = rows.query_starts.tolist(), list[Tensor]()
        for row, slot in zip(plan.pools.tolist(), plan.slots[plan.pools].tolist(), strict=True):
            # A slot that was given back meanwhile asks for nothing any more.
            params = self.slots.pooling.get(slot, PoolingParams())
            vectors.append(pool(hidden[starts[row] : starts[row + 1]], params))
        fetched = self._staging.fetch(torch.stack(vectors))

        def finish() -> StepResult:
            result, found = tokens(), fetched.numpy()
            broken = plan.pools[~np.isfinite(found).all(axis=1)].tolist()
            errors = tuple(RowError(row=row, message="the model's hidden states are not finite") for row in broken)
            return msgspec.structs.replace(result, vectors=found, errors=(*result.errors, *errors))

        return finish

    def _control(self, control: Control) -> Ack:
        """Obey a control message. A barrier is nothing but its acknowledgement; the prefix cache is the engine's own."""
        command, refusal = control.command, ""
        if isinstance(command, Apply):
            command.function(self)
        if not isinstance(command, Call):
            return Ack(ticket=control.ticket)
        # Not kept: a worker that is in no ring gives its memory back as soon as it is let go.
        calls: dict[str, Callable[[], Any]] = {"describe": self._describe, "memory": self.ledger.report}
        if command.method not in calls:
            refusal = unknown_name("worker method", command.method, calls)
        elif command.arguments != _NO_ARGUMENTS:
            refusal = f"worker method {command.method!r} takes no arguments"
        if refusal:
            return Ack(ticket=control.ticket, ok=False, message=refusal)
        return Ack(ticket=control.ticket, value=msgspec.msgpack.encode(calls[command.method]()))

    def _describe(self) -> dict[str, Any]:
        return {
            "device": self.device.facts.name,
            "num_pages": self.pool.scratch,
            "free_memory": self.device.free_memory(),
        }


@dataclass(slots=True)
class _Held:
    """A plan whose rows have logits, float32 [S, V], and no tokens yet. finish: makes its result, once it has."""

    plan: StepPlan
    batch: SamplingBatch
    logits: Tensor
    finish: Finish | None = None
    pending: Pending | None = None


def _tokens_of(plan: StepPlan, sampling: SlotArray, chosen: np.ndarray) -> StepResult:
    """Return the result of the rows that sampled. chosen: int64 [3, S] of ids, whether they count, and whether the model's
    logits were finite; without the last, ids that do not count are those of other logits.
    """  # fmt: skip
    ok, sound = chosen[1] > 0, chosen[-1] > 0
    ids: Int32Array = chosen[0, ok].astype(np.int32)
    return StepResult(
        plan=plan.id,
        offsets=int32([0, *ok.cumsum().tolist()]),
        ids=ids,
        errors=tuple(RowError(row=int(sampling[row]), message=_WHY[bool(sound[row])]) for row in np.flatnonzero(~ok)),
    )


def _sampling(rows: StepRows, targets: Tensor, lengths: Tensor, index: Tensor | None) -> SamplingBatch:
    return SamplingBatch(
        sampling=rows.sampling,
        slots=rows.slots[rows.sampling],
        targets=_picked(targets, rows, index),
        positions=_picked(lengths, rows, index),
    )


def _picked(of_rows: Tensor, rows: StepRows, index: Tensor | None) -> Tensor:
    """Return what belongs to the rows that sample; a recorded step has more rows than the plan."""
    return of_rows[: len(rows.slots)] if index is None else of_rows[index]
