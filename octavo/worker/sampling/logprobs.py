"""Log-probabilities of chosen tokens, and of the tokens of prompts.

raw: under the model itself, before anything is changed. processed: of the distribution that the token was drawn from, after
penalties, masks, temperature and filters (what greedy rows choose from has no temperature). logits instead of
log-probabilities are the same without the norm. A prompt's tokens were not drawn: theirs are raw in any mode.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from octavo.ops.draw import TEMPERATURE
from octavo.ops.draw.reference import kept_weights
from octavo.protocol.arrays import BoolArray, Int32Array
from octavo.protocol.step import TokenLogprobs
from octavo.worker.sampling.rows import SamplingBatch, SamplingRows, SlotArray
from octavo.worker.sampling.sampler import Sampled

# Brings a tensor to the host: what it returns is good once the device has come to the end of its queue.
Fetch = Callable[[Tensor], Tensor]
# Logits of a prompt are made, and final logits worked out, for slices of at most this many numbers.
_SLICE = 2**23


def sampled_logprobs(
    logits: Tensor, sampled: Sampled, rows: SamplingRows, batch: SamplingBatch, mode: str, fetch: Fetch
) -> Callable[[BoolArray], TokenLogprobs | None]:
    """Queue what is reported of the tokens of a step, and return what makes it once the device has come so far.

    logits: float32 [S, V], the model's own. What is returned takes which rows are ok, bool [S], and gives theirs, None if none
    of them asked.
    """
    num_top, norm = rows.num_logprobs[batch.slots], mode.endswith("logprobs")
    shown = logits if mode.startswith("raw") else _final(sampled.logits, rows, batch)
    named = [rows.reported.get(slot) for slot in batch.slots.tolist()] if rows.reported else []
    queued = _queue(shown, sampled.ids, num_top, named, norm=norm)
    numbers, ids = (fetch(tensor) for tensor in queued)

    def finish(ok: BoolArray) -> TokenLogprobs | None:
        if not (num_top[ok] >= 0).any():
            return None
        return _record(num_top, numbers, ids, named).select(ok)

    return finish


def _final(logits: Tensor, rows: SamplingRows, batch: SamplingBatch) -> Tensor:
    """Return the logits that tokens were drawn by, float32 [S, V]; those that no filter kept are -inf."""
    drawn, waiting = np.flatnonzero(~rows.greedy[batch.slots]), logits.device.type == "cpu"
    final = logits.clone() if len(drawn) else logits
    for part in torch.from_numpy(drawn).to(logits.device, non_blocking=True).split(max(1, _SLICE // logits.shape[1])):
        slots, own = batch.targets[part], logits[part]
        reals, wholes = rows.reals[slots], rows.wholes[slots]
        kept = kept_weights(own, reals, wholes, waiting=waiting) > 0
        final[part] = torch.where(kept, own / reals[:, TEMPERATURE, None].float(), float("-inf"))
    return final


def prompt_logprobs(
    compute_logits: Callable[[Tensor], Tensor],
    hidden: Tensor,
    ids: Int32Array,
    num_top: SlotArray,
    *,
    norm: bool,
    vocab_size: int,
) -> TokenLogprobs | None:
    """Return the log-probabilities of the tokens that come next in a prompt, None if no row asked.

    hidden: [t, N], of the tokens before them; compute_logits makes float32 [t, V] of it, some rows at a time, and is called
    for them all. ids: int32 [t], the tokens. num_top: int64 [t].
    """
    size = max(1, _SLICE // vocab_size)
    parts: list[TokenLogprobs] = []
    for first in range(0, len(ids), size):
        part = slice(first, first + size)
        found = token_logprobs(compute_logits(hidden[part]), ids[part], num_top[part], norm=norm)
        parts.append(found or _void(num_top[part] >= 0, 0))
    return _joined(parts) if (num_top >= 0).any() else None


def _joined(parts: Sequence[TokenLogprobs]) -> TokenLogprobs:
    """Return one record of several; the alternatives are padded to the widest."""
    width = max(part.top.shape[1] for part in parts)
    room = [((0, 0), (0, width - part.top.shape[1])) for part in parts]
    return TokenLogprobs(
        wanted=np.concatenate([part.wanted for part in parts]),
        chosen=np.concatenate([part.chosen for part in parts]),
        ranks=np.concatenate([part.ranks for part in parts]),
        top_ids=np.concatenate(
            [np.pad(part.top_ids, pad, constant_values=-1) for part, pad in zip(parts, room, strict=True)]
        ),
        top=np.concatenate(
            [np.pad(part.top, pad, constant_values=-np.inf) for part, pad in zip(parts, room, strict=True)]
        ),
    )


def token_logprobs(logits: Tensor, ids: Int32Array, num_top: SlotArray, *, norm: bool = True) -> TokenLogprobs | None:
    """Return the log-probabilities of `ids`, or None if no row asked.

    logits: float32 [t, V]. ids: int32 [t]. num_top: int64 [t], alternatives each row asked for, -1 for no log-probabilities.
    norm: False returns the logits themselves.
    """
    if not (num_top >= 0).any():
        return None
    chosen = torch.from_numpy(ids.astype(np.int64)).to(logits.device)
    numbers, found = _queue(logits, chosen, num_top, (), norm=norm)
    return _record(num_top, numbers.cpu(), found.cpu(), ())


def _queue(
    logits: Tensor, ids: Tensor, num_top: SlotArray, named: Sequence[SlotArray | None], *, norm: bool
) -> tuple[Tensor, Tensor]:
    """Work out what `_record` takes, of the A rows that asked: float32 [A, 1 + w + n] and int64 [A, 1 + w].

    The logits of the chosen token, of the w likeliest and of up to n that were `named`, less the norm; the chosen token's rank
    and the likeliest ids. Nothing is waited for.
    """
    asked = np.flatnonzero(num_top >= 0)
    if len(asked) < len(num_top):
        index = torch.from_numpy(asked).to(logits.device, non_blocking=True)
        logits, ids = logits[index], ids[index]
    picked = logits.gather(1, ids[:, None])
    best = logits.topk(int(num_top.max()), dim=1)
    numbers = [picked, best.values]
    if named:
        width = max((len(one) for one in named if one is not None), default=0)
        padded = np.zeros((len(named), width), np.int64)
        for row, one in enumerate(named):
            padded[row, : 0 if one is None else len(one)] = 0 if one is None else one
        numbers.append(logits.gather(1, torch.from_numpy(padded[asked]).to(logits.device, non_blocking=True)))
    found = torch.cat(numbers, 1)
    ranks = (logits > picked).sum(1, keepdim=True) + 1
    return found - logits.logsumexp(dim=1, keepdim=True) if norm else found, torch.cat((ranks, best.indices), 1)


def _record(num_top: SlotArray, numbers: Tensor, ids: Tensor, named: Sequence[SlotArray | None]) -> TokenLogprobs:
    """Return the record of all rows from what `_queue` gave, which is on the host by now."""
    values, found, asked = numbers.numpy(), ids.numpy(), np.flatnonzero(num_top >= 0)
    width = found.shape[1] - 1
    result = _void(num_top >= 0, max(width, values.shape[1] - 1 - width))
    inside = np.arange(width) < num_top[asked][:, None]
    result.chosen[asked], result.ranks[asked] = values[:, 0], found[:, 0]
    result.top_ids[asked, :width] = np.where(inside, found[:, 1:], -1)
    result.top[asked, :width] = np.where(inside, values[:, 1 : 1 + width], -np.inf)
    for place, row in enumerate(asked.tolist() if named else ()):
        own = named[row]
        if own is not None:
            # In place of the likeliest ones.
            result.top_ids[row, : len(own)] = own
            result.top[row, : len(own)] = values[place, 1 + width : 1 + width + len(own)]
    return result


def _void(wanted: BoolArray, width: int) -> TokenLogprobs:
    count = len(wanted)
    return TokenLogprobs(
        wanted=wanted,
        chosen=np.zeros(count, np.float32),
        ranks=np.zeros(count, np.int32),
        top_ids=np.full((count, width), -1, np.int32),
        top=np.full((count, width), -np.inf, np.float32),
    )
