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

from octavo.protocol.arrays import BoolArray, Int32Array
from octavo.protocol.step import TokenLogprobs
from octavo.worker.sampling.rows import SamplingRows, SlotArray
from octavo.worker.sampling.sampler import Sampled, kept_weights

# Logits of a prompt are made for slices of at most this many numbers.
_SLICE = 2**23


def sampled_logprobs(
    logits: Tensor, sampled: Sampled, rows: SamplingRows, slots: SlotArray, mode: str
) -> TokenLogprobs | None:
    """Return what is reported of the tokens of the rows that are ok, None if none of them asked.

    logits: float32 [S, V], the model's own. slots: int64 [S].
    """
    ok = sampled.ok.cpu().numpy()
    num_top = rows.num_logprobs[slots][ok]
    if not (num_top >= 0).any():
        return None
    shown = logits if mode.startswith("raw") else _final(sampled.logits, rows, slots)
    ids, norm = sampled.ids.cpu().numpy()[ok].astype(np.int32), mode.endswith("logprobs")
    shown = shown if ok.all() else shown[sampled.ok]
    found = token_logprobs(shown, ids, num_top, norm=norm)
    if rows.reported and found is not None:
        named = [rows.reported.get(slot) for slot in slots[ok].tolist()]
        return _with_named(found, shown, named, norm=norm)
    return found


def _with_named(
    found: TokenLogprobs, logits: Tensor, named: Sequence[SlotArray | None], *, norm: bool
) -> TokenLogprobs:
    """Report the tokens that were named in place of the likeliest ones."""
    width = max((len(ids) for ids in named if ids is not None), default=0)
    result = _joined([found, _void(found.wanted[:0], width)])
    for row, ids in enumerate(named):
        if ids is not None:
            values = logits[row, torch.from_numpy(ids).to(logits.device)]
            result.top_ids[row, : len(ids)] = ids
            result.top[row, : len(ids)] = (values - logits[row].logsumexp(0) if norm else values).cpu().numpy()
    return result


def _final(logits: Tensor, rows: SamplingRows, slots: SlotArray) -> Tensor:
    """Return the logits that tokens were drawn by, float32 [S, V]; those that no filter kept are -inf."""
    drawn = torch.from_numpy(~rows.greedy[slots]).to(logits.device)
    if not drawn.any():
        return logits
    chosen = slots[~rows.greedy[slots]]
    part = logits[drawn]
    kept = kept_weights(part, part.max(1).values, rows, chosen) > 0
    temperature = rows.reals[torch.from_numpy(chosen).to(logits.device), :1].float()
    final = logits.clone()
    final[drawn] = torch.where(kept, part / temperature, float("-inf"))
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
    wanted = num_top >= 0
    if not wanted.any():
        return None
    asked = np.flatnonzero(wanted)
    width = int(num_top.max())
    rows = logits[torch.from_numpy(asked).to(logits.device)]
    picked = rows.gather(1, torch.from_numpy(ids[asked].astype(np.int64)).to(logits.device)[:, None])
    total = rows.logsumexp(dim=1, keepdim=True) if norm else torch.zeros_like(picked)
    best = rows.topk(width, dim=1)
    result = _void(wanted, width)
    result.chosen[asked] = (picked - total)[:, 0].cpu().numpy()
    result.ranks[asked] = ((rows > picked).sum(1) + 1).cpu().numpy()
    inside = np.arange(width) < num_top[asked][:, None]
    result.top_ids[asked] = np.where(inside, best.indices.cpu().numpy(), -1)
    result.top[asked] = np.where(inside, (best.values - total).cpu().numpy(), -np.inf)
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
