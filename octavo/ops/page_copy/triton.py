"""Page copies in Triton: nothing is gathered on the way. Shapes: N bytes a page, C copies."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

# Words of a program.
_WORDS = 4096


@triton.jit
def _copy(pool_ptr, sources_ptr, targets_ptr, page_stride, num_words, WORDS: tl.constexpr):
    copy = tl.program_id(0)
    source, target = tl.load(sources_ptr + copy) * page_stride, tl.load(targets_ptr + copy) * page_stride
    words = tl.program_id(1) * WORDS + tl.arange(0, WORDS)
    x = tl.load(pool_ptr + source + words, mask=words < num_words)
    tl.store(pool_ptr + target + words, x, mask=words < num_words)


def page_copy(pool: Tensor, sources: Tensor, targets: Tensor) -> None:
    """See `PageCopy`."""
    if len(sources) == 0:
        return
    words = pool.view(torch.int64) if pool.shape[1] % 8 == 0 else pool
    num_words = words.shape[1]
    assert words.stride(1) == sources.stride(0) == targets.stride(0) == 1
    _copy[(len(sources), triton.cdiv(num_words, _WORDS))](
        words, sources, targets, words.stride(0), num_words, WORDS=_WORDS, num_warps=8
    )
