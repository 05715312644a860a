"""The ops again, as plain as can be, in float64: one token and one head at a time, no tricks."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from octavo.ops.paged_attention import Scoring


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Over the last dimension."""
    x = x.double()
    return x / torch.sqrt((x**2).mean(-1, keepdim=True) + eps) * weight.double()


def rotated(x: Tensor, positions: Tensor, angles: Tensor) -> Tensor:
    """x [T, H, D] as complex numbers (feature i, feature i + R / 2), each turned by position * angle. angles: float64 [R / 2]."""
    half = len(angles)
    out = x.double().clone()
    for token, position in enumerate(positions.tolist()):
        turned = torch.complex(out[token, :, :half], out[token, :, half : 2 * half])
        turned = turned * torch.polar(torch.ones(half, dtype=torch.float64), position * angles)
        out[token, :, :half], out[token, :, half : 2 * half] = turned.real, turned.imag
    return out


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Over the last dimension."""
    x = x.double() - x.double().mean(-1, keepdim=True)
    x = x / torch.sqrt((x**2).mean(-1, keepdim=True) + eps)
    x = x if weight is None else x * weight.double()
    return x if bias is None else x + bias.double()


def attention(q: Tensor, keys: Tensor, values: Tensor, scoring: Scoring) -> Tensor:
    """The last len(q) tokens of one row. q: [N, H, D]. keys, values: [S, K, D], in order. Returns float64 [N, H, D]."""
    num_queries, num_heads, _ = q.shape
    length, num_kv_heads, _ = keys.shape
    out = torch.zeros(num_queries, num_heads, values.shape[-1], dtype=torch.float64)
    for query in range(num_queries):
        position = length - num_queries + query
        first = 0 if scoring.window is None else max(0, position - scoring.window + 1)
        for head in range(num_heads):
            kept = head // (num_heads // num_kv_heads)
            scores = keys[first : position + 1, kept].double() @ q[query, head].double() * scoring.scale
            if scoring.softcap is not None:
                scores = scoring.softcap * torch.tanh(scores / scoring.softcap)
            if scoring.slopes is not None:
                backs = torch.tensor([position - place for place in range(first, position + 1)])
                scores = scores - scoring.slopes[head].double() * backs
            weights = torch.exp(scores)
            total = weights.sum() + (0 if scoring.sinks is None else torch.exp(scoring.sinks[head].double()))
            out[query, head] = weights / total @ values[first : position + 1, kept].double()
    return out


def activated(x: Tensor, activation: str) -> Tensor:
    """Float64."""
    x = x.double()
    match activation:
        case "silu":
            return x / (1 + torch.exp(-x))
        case "gelu":
            return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))
        case "gelu_tanh":
            return x * 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
        case _:
            return torch.where(x > 0, x, torch.zeros_like(x))
