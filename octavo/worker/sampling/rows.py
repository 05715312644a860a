"""Sampling parameters of every slot: written at admission, gathered by slot in every step.

What kernels read lies on the device; what only decides which kernels run (host flags) lies in numpy. What few requests
bring lies in side tables, only for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from octavo.ops.draw import CHOICE
from octavo.protocol.step import Admission
from octavo.worker.sampling.listed import Listed
from octavo.worker.sampling.processors import LogitsProcessor, RequestFunctions

SlotArray = npt.NDArray[np.int64]
# Columns of `SamplingRows.wholes`, behind those that `octavo.ops.draw` reads.
NUM_PROMPT, MIN_TOKENS = range(CHOICE + 1, CHOICE + 3)
# How a step ends, as far as a graph can record it: with every row's likeliest token, with one drawn as its request wants it, or
# with logits, of which the host has more to do.
Ending = Literal["greedy", "drawn", "logits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingBatch:
    """The rows of a plan that sample. sampling, slots: int64 [S] on the host: which of the plan's rows, and theirs.

    targets: int64 [S], the slots again; positions: int64 [S], of the tokens they will get.
    """

    sampling: SlotArray
    slots: SlotArray
    targets: Tensor
    positions: Tensor


class SamplingRows:
    """Per-slot parameters; N slots.

    history, bounds: of all slots, see `Slots`. reals: float64 [N, 3] of (temperature, top_p, min_p). penalties: float32
    [N, 3] of (presence, frequency, repetition). wholes: int64 [N, 5] of (top_k, seed, choice, num_prompt, min_tokens); top_k
    0 is off. Host flags, [N]: greedy (the likeliest token is always taken), penalized, adjusted (anything changes logits),
    num_logprobs and num_prompt_logprobs (-1 for none asked), num_prompt.
    stops, bias, words, allowed: side tables of what few bring. reported: ids whose log-probabilities are, of few slots.
    processors: the engine's, and that of requests' functions.
    """

    def __init__(
        self, history: Tensor, bounds: SlotArray, vocab_size: int, processors: Sequence[LogitsProcessor] = ()
    ) -> None:
        num_slots, device = len(history), history.device
        self.vocab_size = vocab_size
        self.history = history
        self.bounds = bounds
        self.reals = torch.zeros((num_slots, 3), dtype=torch.float64, device=device)
        self.penalties = torch.zeros((num_slots, 3), device=device)
        self.wholes = torch.zeros((num_slots, 5), dtype=torch.int64, device=device)
        self.greedy = np.ones(num_slots, np.bool_)
        self.penalized = np.zeros(num_slots, np.bool_)
        self.adjusted = np.zeros(num_slots, np.bool_)
        self.num_logprobs = np.full(num_slots, -1, np.int64)
        self.num_prompt_logprobs = np.full(num_slots, -1, np.int64)
        self.reported: dict[int, SlotArray] = {}
        # A released slot keeps it: rows of its last owner may be to come.
        self.num_prompt = np.zeros(num_slots, np.int64)
        self.stops, self.bias, self.words, self.allowed = (Listed(device) for _ in range(4))
        self.processors: tuple[LogitsProcessor, ...] = (*processors, RequestFunctions(history))

    def admit(self, admissions: Sequence[Admission]) -> None:
        """Write the rows of newly taken slots."""
        reals, wholes, penalties = list[tuple[float, ...]](), list[tuple[int, ...]](), list[tuple[float, ...]]()
        for admission in admissions:
            params, slot = admission.sampling, admission.slot
            top_k = params.top_k if 0 < params.top_k < self.vocab_size else 0
            reals.append((params.temperature, params.top_p, params.min_p))
            wholes.append((top_k, admission.seed, admission.choice, admission.num_prompt, params.min_tokens))
            penalties.append((params.presence_penalty, params.frequency_penalty, params.repetition_penalty))
            self.greedy[slot] = params.greedy
            self.penalized[slot] = params.penalized
            self.num_logprobs[slot] = self._number(params.logprobs)
            self.num_prompt_logprobs[slot] = self._number(params.prompt_logprobs)
            self.num_prompt[slot] = admission.num_prompt
            if params.logprob_token_ids:
                self.reported[slot] = np.array(params.logprob_token_ids, np.int64)
            self.adjusted[slot] = self._admit_lists(admission) or params.penalized
        # Without waiting: a step may be running.
        device = self.reals.device
        slots = torch.tensor([admission.slot for admission in admissions]).to(device, non_blocking=True)
        self.reals[slots] = torch.tensor(reals, dtype=torch.float64).to(device, non_blocking=True)
        self.wholes[slots] = torch.tensor(wholes, dtype=torch.int64).to(device, non_blocking=True)
        self.penalties[slots] = torch.tensor(penalties, dtype=torch.float32).to(device, non_blocking=True)

    def release(self, slots: SlotArray) -> None:
        """Forget what the slots' owners asked for."""
        self.greedy[slots] = True
        self.penalized[slots] = self.adjusted[slots] = False
        self.num_logprobs[slots] = self.num_prompt_logprobs[slots] = -1
        for slot in slots.tolist():
            self.reported.pop(slot, None)
            for listed in (self.stops, self.bias, self.words, self.allowed):
                listed.drop(slot)
            for processor in self.processors:
                processor.release(slot)

    def ending(self, slots: SlotArray) -> Ending:
        """Return how a step of these rows ends."""
        if (self.adjusted[slots] | (self.num_logprobs[slots] >= 0)).any():
            return "logits"
        return "greedy" if self.greedy[slots].all() else "drawn"

    def _admit_lists(self, admission: Admission) -> bool:
        """Write the side tables of a slot; returns whether it has anything in them."""
        params, slot = admission.sampling, admission.slot
        stops = [(i,) for i in admission.stop_ids if i < self.vocab_size] if params.min_tokens else []
        bias = [(value, i) for i, value in (params.logit_bias or {}).items()]
        allowed = [(i,) for i in params.allowed_token_ids or ()]
        self.stops.put(slot, stops)
        self.bias.put(slot, bias)
        self.words.put(slot, admission.bad_tokens)
        self.allowed.put(slot, allowed)
        concerned = [processor.admit(admission) for processor in self.processors]
        return bool(stops or bias or allowed or admission.bad_tokens) or any(concerned)

    def _number(self, asked: int | None) -> int:
        if asked is None:
            return -1
        return self.vocab_size if asked < 0 else min(asked, self.vocab_size)
