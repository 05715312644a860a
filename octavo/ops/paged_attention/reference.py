"""Paged attention in plain torch, exact and without copying what a decode row has kept.

A row with one query walks its pages as views of the pool. A row with many queries gathers its keys and values once for each
head, and takes its queries in tiles so that scores stay small however long the context is.

Shapes: T tokens, R rows, H query heads, K key/value heads, G = H / K, D head size, P pages, B tokens a block, C columns,
N queries of a row, S tokens they see, M pages that hold these.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from octavo.ops.paged_attention import Scoring, Span

# The most queries and the most scores (64 MiB of float32) of a tile.
_TILE_QUERIES = 256
_TILE_SCORES = 2**24


def paged_attention(
    q: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    table: Tensor,
    query_starts: Tensor,
    lengths: Tensor,
    scoring: Scoring,
    span: Span | None = None,
) -> Tensor:
    """See `PagedAttention`; here values may have another size than keys."""
    starts, num_heads, block = query_starts.tolist(), key_pages.shape[1], key_pages.shape[2]
    out = q.new_empty(*q.shape[:2], value_pages.shape[-1])
    if starts[-1] < len(out):
        out[starts[-1] :] = 0
    q_TKGD, out_TKGD = q.unflatten(1, (num_heads, -1)), out.unflatten(1, (num_heads, -1))
    skips = [0] * len(lengths) if span is None else span.skips.tolist()
    for row, (length, pages) in enumerate(zip(lengths.tolist(), table.tolist(), strict=True)):
        first, last = starts[row], starts[row + 1]
        if first == last:
            continue
        if span is not None and scoring.window is None:
            pages[: skips[row] // block] = span.table[: skips[row] // block].tolist()
        # The first token that any of the row's queries sees, and the pages from there on.
        begin = 0 if scoring.window is None else max(0, length - (last - first) + 1 - scoring.window)
        seen = pages[begin // block : -(-length // block)]
        within = slice(begin % block, begin % block + length - begin)
        if last - first == 1:
            out_TKGD[first] = _decode(q_TKGD[first], key_pages, value_pages, seen, within, scoring)
            continue
        index = torch.tensor(seen, device=q.device)
        for head, of_head in enumerate(_by_head(scoring, num_heads)):
            keys, values = (
                pool[:, head].index_select(0, index).flatten(0, 1)[within].float() for pool in (key_pages, value_pages)
            )
            _chunk(q_TKGD[first:last, head], keys, values, of_head, out_TKGD[first:last, head])
    return out


def _decode(
    q_KGD: Tensor, key_pages: Tensor, value_pages: Tensor, seen: list[int], span: slice, scoring: Scoring
) -> Tensor:
    """Attend from one query to the tokens `span` of the pages `seen`. Returns float32 [K, G, D]."""
    q_KGD = q_KGD.float() * scoring.scale
    keys, values = _views(key_pages.mT, seen, span, 2), _views(value_pages, seen, span, 1)
    scores = torch.cat([torch.bmm(q_KGD, view.float()) for view in keys], -1)
    distances = torch.arange(scores.shape[-1] - 1, -1, -1, device=q_KGD.device)
    weights = _weights(scores, distances, scoring).split([view.shape[1] for view in values], -1)
    out_KGD = q_KGD.new_zeros(*q_KGD.shape[:2], value_pages.shape[-1])
    for weight, view in zip(weights, values, strict=True):
        out_KGD.baddbmm_(weight, view.float())
    return out_KGD


def _views(pool: Tensor, seen: list[int], span: slice, dim: int) -> list[Tensor]:
    """Return views of pages, tokens along `dim`; the first and the last are cut, as they may hold foreign tokens."""
    views = [pool[page] for page in seen]
    views[-1] = views[-1].narrow(dim, 0, span.stop - (len(seen) - 1) * pool.shape[dim + 1])
    views[0] = views[0].narrow(dim, span.start, views[0].shape[dim] - span.start)
    return views


def _chunk(q_NGD: Tensor, keys_SD: Tensor, values_SD: Tensor, scoring: Scoring, out_NGD: Tensor) -> None:
    """Attend from a row's last N tokens, all heads that share one key head, in tiles of queries."""
    num_queries, num_groups, _ = q_NGD.shape
    cached = keys_SD.shape[0] - num_queries
    step = min(_TILE_QUERIES, max(1, _TILE_SCORES // (num_groups * keys_SD.shape[0])))
    places = torch.arange(keys_SD.shape[0], device=q_NGD.device)
    for first in range(0, num_queries, step):
        last = min(first + step, num_queries)
        begin = 0 if scoring.window is None else max(0, cached + first + 1 - scoring.window)
        seen, own = places[begin : cached + last], places[cached + first : cached + last, None, None]
        distances = own - seen
        hidden = distances < 0
        if scoring.window is not None:
            hidden |= distances >= scoring.window
        scores = torch.matmul(q_NGD[first:last].float() * scoring.scale, keys_SD[begin : cached + last].T)
        weights = _weights(scores, distances, scoring, hidden)
        out_NGD[first:last] = torch.matmul(weights, values_SD[begin : cached + last])


def _by_head(scoring: Scoring, num_heads: int) -> list[Scoring]:
    """Return each key head's part: slopes and sinks of the G query heads that share it."""
    slopes = [None] * num_heads if scoring.slopes is None else scoring.slopes.chunk(num_heads)
    sinks = [None] * num_heads if scoring.sinks is None else scoring.sinks.chunk(num_heads)
    return [replace(scoring, slopes=slopes[head], sinks=sinks[head]) for head in range(num_heads)]


def _weights(scores: Tensor, distances: Tensor, scoring: Scoring, hidden: Tensor | None = None) -> Tensor:
    """Return the softmax of scores [..., G, S], which are overwritten. distances, hidden: broadcast against them."""
    if scoring.softcap is not None:
        scores = scores.div_(scoring.softcap).tanh_().mul_(scoring.softcap)
    if scoring.slopes is not None:
        scores -= scoring.slopes.view(-1, scores.shape[-2], 1) * distances
    if hidden is not None:
        scores = scores.masked_fill_(hidden, float("-inf"))
    if scoring.sinks is None:
        return scores.softmax(-1)
    sinks = scoring.sinks.float().view(-1, scores.shape[-2], 1).expand(*scores.shape[:-1], 1)
    return torch.cat((scores, sinks), -1).softmax(-1)[..., :-1]
