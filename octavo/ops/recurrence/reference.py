"""Causal convolutions, and the gated delta rule, token by token for short rows and in chunks for long ones, in plain torch.

Shapes: T tokens, R rows, P pages in the pool, S pages that a state spans, G heads of a plane in a page, H value heads, D key
features, V value features, N tokens of a chunk.
"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo.ops.recurrence import StatePages

_CHUNK = 64
# Rows with fewer tokens go token by token.
_SHORT = 4
_EPS = 1e-6


def read_states(plane: Tensor, pages: StatePages) -> Tensor:
    """Return the rows' states before the step, a copy [R, S * G, D] of plane [P, G, 1, D]."""
    states = plane[pages.before].squeeze(-2).flatten(1, 2)
    return torch.where(pages.fresh[:, None, None], torch.zeros_like(states), states)


def write_states(states: Tensor, plane: Tensor, pages: StatePages) -> None:
    """Put the rows' states [R, S * G, D] into plane [P, G, 1, D]."""
    plane[pages.after] = states.unflatten(1, (pages.after.shape[1], -1)).unsqueeze(-2).to(plane.dtype)


def causal_conv(x: Tensor, weight: Tensor, inputs: Tensor, pages: StatePages, query_starts: Tensor) -> Tensor:
    """See `CausalConv`."""
    num_channels, num_kept = weight.shape[0], weight.shape[1] - 1
    kept = read_states(inputs, pages)
    shape = kept.shape
    kept_RCK, out, starts = kept.view(-1, num_channels, num_kept), torch.zeros_like(x), query_starts.tolist()
    for row, (first, last) in enumerate(pairwise(starts)):
        seen = torch.cat((kept_RCK[row], x[first:last].T), -1)
        filtered = F.conv1d(seen[None].float(), weight[:, None].float(), groups=num_channels)[0]
        out[first:last] = F.silu(filtered).T
        kept_RCK[row] = seen[:, seen.shape[1] - num_kept :]
    write_states(kept_RCK.view(shape), inputs, pages)
    return out


def gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    beta: Tensor,
    states: Tensor,
    pages: StatePages,
    query_starts: Tensor,
) -> Tensor:
    """See `GatedDeltaRule`."""
    share, num_heads = v.shape[1] // k.shape[1], v.shape[1]
    q, k = (_unit(x.float()).repeat_interleave(share, 1) for x in (q, k))
    # Heads first: [H, T, ...].
    q, k, values = q.transpose(0, 1) * q.shape[-1] ** -0.5, k.transpose(0, 1), v.float().transpose(0, 1)
    decay, beta = decay.T, beta.T
    found = read_states(states, pages).float()
    state_RHDV, out, starts = found.unflatten(-1, (q.shape[-1], -1)), torch.zeros_like(values), query_starts.tolist()
    assert state_RHDV.shape[1] == num_heads
    for row, (first, last) in enumerate(pairwise(starts)):
        state_HDV = state_RHDV[row]
        step = 1 if last - first < _SHORT else _CHUNK
        for begin in range(first, last, step):
            part = slice(begin, min(begin + step, last))
            fold = _token if step == 1 else _chunk
            out[:, part], state_HDV = fold(
                q[:, part], k[:, part], values[:, part], decay[:, part], beta[:, part], state_HDV
            )
        state_RHDV[row] = state_HDV
    write_states(state_RHDV.flatten(2), states, pages)
    return out.transpose(0, 1).to(v.dtype)


def _unit(x: Tensor) -> Tensor:
    return x * (x.square().sum(-1, keepdim=True) + _EPS).rsqrt()


def _token(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Fold one token into a state [H, D, V], as the rule says. q, k: [H, 1, D]. v: [H, 1, V]. decay, beta: [H, 1]."""
    state = state * decay[..., None].exp()
    correction = (v - k @ state) * beta[..., None]
    state = state + k.mT @ correction
    return q @ state, state


def _chunk(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Fold N tokens into a state [H, D, V] at once. q, k: [H, N, D]. v: [H, N, V]. decay, beta: [H, N].

    Token i corrects by w_i = beta_i (v_i - what the state and the corrections before it, decayed, say of k_i): a triangular
    system in the corrections of a chunk.
    """
    total = decay.cumsum(-1)
    later = torch.ones(k.shape[1], k.shape[1], dtype=torch.bool, device=k.device).triu(1)
    # What is left at token i of what was there after token j.
    left = (total[..., :, None] - total[..., None, :]).masked_fill(later, float("-inf")).exp()
    system = (beta[..., None] * (k @ k.mT) * left).tril(-1)
    said = (k * total[..., None].exp()) @ state
    corrections = torch.linalg.solve_triangular(system, beta[..., None] * (v - said), upper=False, unitriangular=True)
    out = (q * total[..., None].exp()) @ state + (q @ k.mT * left) @ corrections
    last = total[..., -1:]
    return out, state * last[..., None].exp() + (k * (last - total)[..., None].exp()).mT @ corrections
