"""top_k and top_p over unnormalized weights, without sorting the vocabulary unless a row's mass is spread that thin.

Shapes: F rows, V vocabulary, W likeliest tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

# The tokens that top_p keeps are looked for among this many likeliest, then among `_WIDER` times as many, and so on.
_CANDIDATES = 256
_WIDER = 16


def keep_top(weights: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Return which tokens stay, bool [F, V]: the `top_k` largest, then of these the fewest whose share reaches `top_p`.

    weights: float64 [F, V], >= 0. top_k: int64 [F], 0 is off. top_p: float64 [F]. At least one token stays; of tokens
    with equal weights the lowest ids do.
    """
    vocab = weights.shape[1]
    limit = torch.where(top_k > 0, top_k, vocab)
    mass = weights.sum(1)
    least, num_kept = torch.empty_like(mass), torch.empty_like(limit)
    tied = torch.empty_like(limit, dtype=torch.bool)
    width = max(_CANDIDATES, int(top_k.max()))
    left = torch.arange(len(weights), device=weights.device)
    while len(left) > 0:
        width = min(width, vocab)
        ranked = _ranked(weights if len(left) == len(weights) else weights[left], min(width + 1, vocab))
        reached = ranked[:, :width].cumsum(1)
        within = reached.gather(1, limit[left].clamp(max=width)[:, None] - 1)[:, 0]
        goal = top_p[left] * torch.where(limit[left] <= width, within, mass[left])
        num_kept[left] = _num_kept(reached, limit[left], goal, top_p[left])
        least[left] = ranked.gather(1, num_kept[left, None] - 1)[:, 0]
        following = ranked.gather(1, num_kept[left, None].clamp(max=ranked.shape[1] - 1))[:, 0]
        tied[left] = (num_kept[left] < ranked.shape[1]) & (following == least[left])
        left = left[(limit[left] > width) & (reached[:, -1] < goal)]
        width *= _WIDER
    keep = weights >= least[:, None]
    if bool(tied.any()):
        keep[tied] = _lowest_ids(weights[tied], least[tied], num_kept[tied])
    return keep


def keep_sorted(weights: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Return the same as `keep_top`, reading nothing on the host: all weights are sorted."""
    ranked, order = weights.sort(dim=1, descending=True, stable=True)
    limit, reached = torch.where(top_k > 0, top_k, weights.shape[1]), ranked.cumsum(1)
    goal = top_p * reached.gather(1, limit[:, None] - 1)[:, 0]
    kept = torch.arange(weights.shape[1], device=weights.device) < _num_kept(reached, limit, goal, top_p)[:, None]
    return torch.zeros_like(kept).scatter_(1, order, kept)


def _ranked(weights: Tensor, count: int) -> Tensor:
    """Return the `count` largest weights of each row, falling: [F, W]."""
    if count == weights.shape[1]:
        return weights.sort(dim=1, descending=True).values
    return weights.topk(count, dim=1).values


def _num_kept(reached: Tensor, limit: Tensor, goal: Tensor, top_p: Tensor) -> Tensor:
    """Return how many of the likeliest tokens stay, int64 [F]. reached: mass up to and with each of them, [F, W]."""
    before = torch.zeros_like(reached)
    before[:, 1:] = reached[:, :-1]
    stays = (before < goal[:, None]) | (top_p >= 1.0)[:, None]
    stays &= torch.arange(reached.shape[1], device=reached.device) < limit[:, None]
    return stays.sum(1).clamp(min=1)


def _lowest_ids(weights: Tensor, least: Tensor, num_kept: Tensor) -> Tensor:
    """Return the `num_kept` largest, of those that equal `least` the first."""
    above = weights > least[:, None]
    equal = weights == least[:, None]
    return above | (equal & (equal.cumsum(1) <= (num_kept - above.sum(1))[:, None]))
