"""Runs plans: everything a rank does in a step, in one order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import torch

from octavo.base.naming import unknown_name
from octavo.device.registry import detect
from octavo.engine.executor import WorkerReport
from octavo.engine.kvcache.geometry import Geometry
from octavo.nn.decoder import EncoderDecoder
from octavo.nn.parallel.collectives import broadcast
from octavo.nn.parallel.mesh import Mesh
from octavo.protocol.arrays import Int32Array, int32
from octavo.protocol.control import Ack, Apply, Call, Control
from octavo.protocol.pooling import PoolingParams
from octavo.protocol.step import RowError, StepPlan, StepResult, TokenLogprobs
from octavo.worker.batch import Batch, make_batch, make_dummy_batch, make_encoder_batch
from octavo.worker.loader.assemble import AssembledModel, assemble
from octavo.worker.memory import pool_bytes
from octavo.worker.pages import PagePool
from octavo.worker.pooling import pool
from octavo.worker.sampling.logprobs import prompt_logprobs, sampled_logprobs
from octavo.worker.sampling.processors import load_processors
from octavo.worker.sampling.rows import SlotArray
from octavo.worker.sampling.sampler import sample
from octavo.worker.slots import Slots
from octavo.worker.spec import WorkerSpec

Assemble = Callable[..., AssembledModel]
# An empty msgpack list.
_NO_ARGUMENTS = b"\x90"


class ModelRunner:
    """One rank's model, pages and slots. `assemble` replaces the loader, in tests. mesh: one rank if not given.

    The rank that samples gives its tokens to the others of its stage in the same step; earlier stages `learn` them later.
    """

    def __init__(self, spec: WorkerSpec, assemble: Assemble = assemble, mesh: Mesh | None = None) -> None:
        self.spec = spec
        self.mesh = mesh or Mesh()
        self._share = broadcast(self.mesh.tensor)
        # Of plans whose tokens this stage has not learnt: slots and positions.
        self._unknown: dict[int, tuple[SlotArray, torch.Tensor]] = {}
        self._assemble = assemble
        self._calls: dict[str, Callable[[], Any]] = {"describe": self._describe}

    def load(self) -> WorkerReport:
        """Load the model; report what its layers keep and how many bytes the page pool may take."""
        spec = self.spec
        self.device = detect(spec.device)
        loaded = self._assemble(
            spec.checkpoint,
            dtype=spec.dtype,
            device=self.device,
            max_model_len=spec.max_model_len,
            load_format=spec.load_format,
            seed=spec.seed,
            mesh=self.mesh,
        )
        # Ranks may share a memory: it is measured once all have what they need.
        self.mesh.barrier()
        self.model, self._kernels = loaded.model, loaded.kernels
        facts = self.device.facts
        free_bytes, decisions = pool_bytes(
            spec, loaded.layers, kind=facts.kind, free=self.device.free_memory(), total=facts.total_memory
        )
        return WorkerReport(
            layers=loaded.layers,
            free_bytes=free_bytes,
            decisions=(*loaded.decisions, *decisions),
            generates=loaded.generates,
        )

    def allocate(self, geometry: Geometry, num_pages: int) -> None:
        """Make the page pool and the slots."""
        self.pool = PagePool(geometry, num_pages, self.device, self._kernels.page_copy)
        vocab_size = self.spec.checkpoint.facts.vocab_size
        size, device = self.spec.max_num_seqs, self.pool.memory.device
        processors = load_processors(self.spec.logits_processors, vocab_size, size, device)
        self.slots = Slots(size, self.spec.max_model_len, vocab_size, self.pool, processors)

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult:
        """Do everything a plan says, in order: slots, copies, transfers, controls, encoder, rows, copies."""
        self.slots.release(plan.releases)
        self.slots.admit(plan.admissions)
        self.slots.write_tables(plan.table)
        self.pool.copy(plan.copies_before)
        # No connector can fill a page yet: the engine computes what it hoped to fetch.
        failed = tuple(transfer.ticket for transfer in plan.transfers)
        acks = tuple(self._control(control) for control in plan.controls)
        self._encode(plan)
        rows = self._run(plan)
        self.pool.copy(plan.copies_after)
        return msgspec.structs.replace(rows, failed=failed, acks=acks)

    def _encode(self, plan: StepPlan) -> None:
        """Run the encoder over the inputs of new sequences."""
        new = [admission for admission in plan.admissions if len(admission.encoder_tokens)]
        if new:
            model: EncoderDecoder = self.model  # pyright: ignore[reportAssignmentType]
            model.encode(*make_encoder_batch(new, self.slots, self.pool))

    def _run(self, plan: StepPlan) -> StepResult:
        """Compute and sample the plan's rows."""
        if plan.dummy:
            batch = make_dummy_batch(max(plan.shape, len(plan.slots), 1), self.pool, self.slots.device)
            self.model.forward(batch.ids, batch.context)
            return StepResult(plan=plan.id)
        if len(plan.slots) == 0:
            return StepResult(plan=plan.id)
        batch = make_batch(plan, self.slots, self.pool)
        hidden = self.model.forward(batch.ids, batch.context)
        rows = self._tokens(plan, batch, hidden)
        if len(plan.scores) and self.mesh.ends:
            rows = msgspec.structs.replace(rows, scores=self._scores(plan, batch, hidden))
        return self._with_vectors(plan, batch, hidden, rows) if len(plan.pools) and self.mesh.samples else rows

    def _tokens(self, plan: StepPlan, batch: Batch, hidden: torch.Tensor) -> StepResult:
        """Sample the rows that sample. hidden: [T, N]."""
        if len(batch.sampling) == 0:
            return StepResult(plan=plan.id)
        if not self.mesh.ends:
            self._unknown[plan.id] = batch.slots, batch.positions
            return StepResult(plan=plan.id)
        return self._sample(plan, batch, self.model.compute_logits(hidden[batch.last]))

    @torch.inference_mode()
    def learn(self, result: StepResult) -> None:
        """Append what an earlier plan gave, on a stage before the last; nothing happens where it is known."""
        rows = self._unknown.pop(result.plan, None)
        if rows is None:
            return
        ok = np.diff(result.offsets) > 0
        ids = np.zeros(len(ok), np.int64)
        ids[ok] = result.ids
        device = self.slots.device
        self.slots.append(*rows, torch.from_numpy(ids).to(device), torch.from_numpy(ok).to(device))

    def _sample(self, plan: StepPlan, batch: Batch, logits: torch.Tensor) -> StepResult:
        """Choose tokens, append them to their slots and bring them to the host. logits: float32 [S, V]."""
        if not self.mesh.samples:
            shared = self._share(torch.empty((2, len(logits)), dtype=torch.int64, device=logits.device))
            self.slots.append(batch.slots, batch.positions, shared[0], shared[1].bool())
            return StepResult(plan=plan.id)
        sampled = sample(logits, self.slots.sampling, batch.slots, batch.positions)
        self._share(torch.stack((sampled.ids, sampled.ok)))
        self.slots.append(batch.slots, batch.positions, sampled.ids, sampled.ok)
        ok = sampled.ok.cpu().numpy()
        ids: Int32Array = sampled.ids.cpu().numpy()[ok].astype(np.int32)
        return StepResult(
            plan=plan.id,
            offsets=int32([0, *ok.cumsum().tolist()]),
            ids=ids,
            logprobs=sampled_logprobs(logits, sampled, self.slots.sampling, batch.slots, self.spec.logprobs_mode),
            errors=tuple(
                RowError(row=int(batch.sampling[row]), message=_why_not(logits[row])) for row in np.flatnonzero(~ok)
            ),
        )

    def _scores(self, plan: StepPlan, batch: Batch, hidden: torch.Tensor) -> TokenLogprobs | None:
        """Return the log-probabilities of the prompts' tokens behind those of the plan's `scores`. hidden: [T, N]."""
        rows, slots = self.slots.sampling, plan.slots[plan.scores].astype(np.int64)
        starts = plan.starts[plan.scores].astype(np.int64)
        numbers = np.minimum(plan.counts[plan.scores], np.maximum(rows.num_prompt[slots] - 1 - starts, 0))
        within = np.arange(numbers.sum()) - np.repeat(numbers.cumsum() - numbers, numbers)
        firsts = batch.context.query_starts.cpu().numpy()[plan.scores]
        places = torch.from_numpy(np.repeat(firsts, numbers) + within).to(hidden.device)
        owners, positions = (torch.from_numpy(np.repeat(part, numbers)).to(hidden.device) for part in (slots, starts))
        behind = positions + torch.from_numpy(within).to(hidden.device) + 1
        return prompt_logprobs(
            self.model.compute_logits,
            hidden[places],
            rows.history[owners, behind].cpu().numpy(),
            np.repeat(rows.num_prompt_logprobs[slots], numbers) if self.mesh.samples else np.full(len(within), -1),
            norm=self.spec.logprobs_mode.endswith("logprobs"),
            vocab_size=rows.vocab_size,
        )

    def _with_vectors(self, plan: StepPlan, batch: Batch, hidden: torch.Tensor, rows: StepResult) -> StepResult:
        """Add the vectors of the rows that pool. hidden: [T, N]."""
        starts, vectors = batch.context.query_starts.tolist(), list[torch.Tensor]()
        for row, slot in zip(plan.pools.tolist(), plan.slots[plan.pools].tolist(), strict=True):
            # A slot that was given back meanwhile asks for nothing any more.
            params = self.slots.pooling.get(slot, PoolingParams())
            vectors.append(pool(hidden[starts[row] : starts[row + 1]], params))
        found = torch.stack(vectors).cpu().numpy()
        broken = plan.pools[~np.isfinite(found).all(axis=1)].tolist()
        errors = tuple(RowError(row=row, message="the model's hidden states are not finite") for row in broken)
        return msgspec.structs.replace(rows, vectors=found, errors=(*rows.errors, *errors))

    def _control(self, control: Control) -> Ack:
        """Obey a control message. A barrier is nothing but its acknowledgement; the prefix cache is the engine's own."""
        command, refusal = control.command, ""
        if isinstance(command, Apply):
            command.function(self)
        if not isinstance(command, Call):
            return Ack(ticket=control.ticket)
        if command.method not in self._calls:
            refusal = unknown_name("worker method", command.method, self._calls)
        elif command.arguments != _NO_ARGUMENTS:
            refusal = f"worker method {command.method!r} takes no arguments"
        if refusal:
            return Ack(ticket=control.ticket, ok=False, message=refusal)
        return Ack(ticket=control.ticket, value=msgspec.msgpack.encode(self._calls[command.method]()))

    def _describe(self) -> dict[str, Any]:
        return {
            "device": self.device.facts.name,
            "num_pages": self.pool.scratch,
            "free_memory": self.device.free_memory(),
        }


def _why_not(logits: torch.Tensor) -> str:
    """Return why no token could be chosen from a row of the model's logits."""
    if logits.max().isfinite():
        return "no token is left to choose from: what the request forbids or allows excludes them all"
    return "the model's logits are not finite"
