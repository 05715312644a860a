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
from octavo.protocol.arrays import Int32Array, int32
from octavo.protocol.control import Ack, Call, Control
from octavo.protocol.step import RowError, StepPlan, StepResult
from octavo.worker.batch import Batch, make_batch, make_dummy_batch
from octavo.worker.loader.assemble import AssembledModel, assemble
from octavo.worker.memory import pool_bytes
from octavo.worker.pages import PagePool
from octavo.worker.sampling.logprobs import token_logprobs
from octavo.worker.sampling.sampler import sample
from octavo.worker.slots import Slots
from octavo.worker.spec import WorkerSpec

Assemble = Callable[..., AssembledModel]
# An empty msgpack list.
_NO_ARGUMENTS = b"\x90"


class ModelRunner:
    """One rank's model, pages and slots. `assemble` replaces the loader, in tests."""

    def __init__(self, spec: WorkerSpec, assemble: Assemble = assemble) -> None:
        self.spec = spec
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
        )
        self.model, self._kernels = loaded.model, loaded.kernels
        facts = self.device.facts
        free_bytes, decisions = pool_bytes(
            spec, loaded.layers, kind=facts.kind, free=self.device.free_memory(), total=facts.total_memory
        )
        return WorkerReport(layers=loaded.layers, free_bytes=free_bytes, decisions=(*loaded.decisions, *decisions))

    def allocate(self, geometry: Geometry, num_pages: int) -> None:
        """Make the page pool and the slots."""
        self.pool = PagePool(geometry, num_pages, self.device, self._kernels.page_copy)
        vocab_size = self.spec.checkpoint.facts.vocab_size
        self.slots = Slots(self.spec.max_num_seqs, self.spec.max_model_len, vocab_size, self.pool)

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult:
        """Do everything a plan says, in order: slots, copies, transfers, controls, rows, copies."""
        self.slots.release(plan.releases)
        self.slots.admit(plan.admissions)
        self.slots.write_tables(plan.table)
        self.pool.copy(plan.copies_before)
        # No connector can fill a page yet: the engine computes what it hoped to fetch.
        failed = tuple(transfer.ticket for transfer in plan.transfers)
        acks = tuple(self._control(control) for control in plan.controls)
        rows = self._run(plan)
        self.pool.copy(plan.copies_after)
        return msgspec.structs.replace(rows, failed=failed, acks=acks)

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
        if len(batch.sampling) == 0:
            return StepResult(plan=plan.id)
        return self._sample(plan, batch, self.model.compute_logits(hidden[batch.last]))

    def _sample(self, plan: StepPlan, batch: Batch, logits: torch.Tensor) -> StepResult:
        """Choose tokens, append them to their slots and bring them to the host. logits: float32 [S, V]."""
        sampled = sample(logits, self.slots.sampling, batch.slots, batch.positions)
        self.slots.append(batch.slots, batch.positions, sampled.ids, sampled.ok)
        ok = sampled.ok.cpu().numpy()
        ids: Int32Array = sampled.ids.cpu().numpy()[ok].astype(np.int32)
        num_logprobs = self.slots.sampling.num_logprobs[batch.slots][ok]
        return StepResult(
            plan=plan.id,
            offsets=int32([0, *ok.cumsum().tolist()]),
            ids=ids,
            logprobs=token_logprobs(logits if ok.all() else logits[sampled.ok], ids, num_logprobs),
            errors=tuple(
                RowError(row=int(row), message="the model's logits are not finite") for row in batch.sampling[~ok]
            ),
        )

    def _control(self, control: Control) -> Ack:
        """Obey a control message. A barrier is nothing but its acknowledgement; the prefix cache is the engine's own."""
        command, refusal = control.command, ""
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
