"""A step that needs the host for nothing, so that a graph can do it.

Shapes: R rows, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from octavo.nn.causal import CausalDecoder
from octavo.nn.decoder import CausalLM
from octavo.nn.embedding import LMHead
from octavo.nn.parallel.collectives import Collective
from octavo.nn.parallel.mesh import Mesh
from octavo.ops.append import Append
from octavo.ops.draw import Draw
from octavo.ops.likeliest import Likeliest
from octavo.worker.batch import Batch, StepShape, make_batch, void_rows
from octavo.worker.pages import PagePool
from octavo.worker.sampling.rows import Ending
from octavo.worker.slots import Slots
from octavo.worker.staging import Staging


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutputs:
    """What a step leaves on the device. targets, lengths: of every row, see `Batch`.

    chosen: int64 [2, R] of ids and whether they count, if it chose; otherwise logits: float32 [R, V]. Stages before the last
    have neither.
    """

    targets: Tensor
    lengths: Tensor
    chosen: Tensor | None = None
    logits: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepProgram:
    """Forward pass and end of a step whose numbers lie at the beginning of `staging.fixed`.

    draw: None if it cannot be recorded. share: gives what the rank that samples has to the others of its stage. head: see
    `shared_head`.
    """

    model: CausalLM
    mesh: Mesh
    share: Collective
    slots: Slots
    pool: PagePool
    staging: Staging
    likeliest: Likeliest
    append: Append
    draw: Draw | None
    head: LMHead | None = None

    @torch.inference_mode()
    def run(self, shape: StepShape, ending: Ending) -> StepOutputs:
        """Do a step; what was chosen is appended to its slot."""
        batch = make_batch(self.staging.fixed[: shape.num_numbers], shape, self.slots, self.pool)
        hidden = self.model.forward(batch.ids, batch.context)
        if not self.mesh.ends:
            return StepOutputs(targets=batch.targets, lengths=batch.lengths)
        hidden = hidden if shape.decodes else hidden[batch.last]
        if ending == "logits":
            logits = self.model.compute_logits(hidden)
            return StepOutputs(targets=batch.targets, lengths=batch.lengths, logits=logits)
        if ending == "greedy" and self.head is not None:
            ids, ok = self.head.likeliest(hidden)
        else:
            ids, ok = self._choose(batch, self.model.compute_logits(hidden), ending)
        chosen = self.append(self.slots.history, self.slots.lengths, batch.targets, batch.lengths, ids, ok)
        return StepOutputs(targets=batch.targets, lengths=batch.lengths, chosen=chosen)

    def _choose(self, batch: Batch, logits: Tensor, ending: Ending) -> tuple[Tensor, Tensor]:
        """Return every row's token and whether it counts; the rank that samples tells the others."""
        if not self.mesh.samples:
            shared = self.share(torch.empty((2, len(logits)), dtype=torch.int64, device=logits.device))
            return shared[0], shared[1].bool()
        if ending == "greedy":
            ids, ok = self.likeliest(logits)
        else:
            assert self.draw is not None
            kept = self.slots.sampling
            ids, ok = self.draw(logits, batch.targets, batch.lengths, kept.reals, kept.wholes)
        if self.mesh.tensor.size > 1:
            self.share(torch.stack((ids, ok)))
        return ids, ok

    @torch.inference_mode()
    def run_void(self, shape: StepShape, ending: Ending) -> StepOutputs:
        """Do a step of nobody's rows, which changes nothing but the scratch page."""
        rows = void_rows(shape.num_rows, shape.num_tokens, self.slots.max_model_len)
        self.staging.send(rows.numbers(shape, self.slots.void))
        return self.run(shape, ending)


def shared_head(model: CausalLM) -> LMHead | None:
    """Return the head, if ranks can look for likeliest tokens in parts of it: nothing behind it may change their order."""
    if isinstance(model, CausalDecoder) and type(model).compute_logits is CausalDecoder.compute_logits:
        return model.head if model.head.axis.size > 1 else None
    return None
