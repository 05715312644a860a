"""Log-probabilities of chosen tokens under the model itself: before temperature, masks and filters."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from octavo.protocol.arrays import Int32Array
from octavo.protocol.step import TokenLogprobs
from octavo.worker.sampling.rows import SlotArray


def token_logprobs(logits: Tensor, ids: Int32Array, num_top: SlotArray) -> TokenLogprobs | None:
    """Return the log-probabilities of `ids`, or None if no row asked.

    logits: float32 [t, V]. ids: int32 [t]. num_top: int64 [t], alternatives each row asked for, -1 for no log-probabilities.
    """
    wanted = num_top >= 0
    if not wanted.any():
        return None
    asked = np.flatnonzero(wanted)
    width = int(num_top.max())
    rows = logits[torch.from_numpy(asked).to(logits.device)]
    picked = rows.gather(1, torch.from_numpy(ids[asked].astype(np.int64)).to(logits.device)[:, None])
    norm = rows.logsumexp(dim=1, keepdim=True)
    best = rows.topk(width, dim=1)
    result = TokenLogprobs(
        wanted=wanted,
        chosen=np.zeros(len(ids), np.float32),
        ranks=np.zeros(len(ids), np.int32),
        top_ids=np.full((len(ids), width), -1, np.int32),
        top=np.full((len(ids), width), -np.inf, np.float32),
    )
    result.chosen[asked] = (picked - norm)[:, 0].cpu().numpy()
    result.ranks[asked] = ((rows > picked).sum(1) + 1).cpu().numpy()
    inside = np.arange(width) < num_top[asked][:, None]
    result.top_ids[asked] = np.where(inside, best.indices.cpu().numpy(), -1)
    result.top[asked] = np.where(inside, (best.values - norm).cpu().numpy(), -np.inf)
    return result
