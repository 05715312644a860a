"""From the hidden states of a whole prompt to one vector.

Shapes: T tokens of the step, N hidden features.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from octavo.protocol.pooling import PoolingParams


def pool(hidden: Tensor, params: PoolingParams) -> Tensor:
    """Return float32 [N] from one prompt's hidden states [T, N]."""
    wide = hidden.float()
    match params.pooling:
        case "cls":
            vector = wide[0]
        case "last":
            vector = wide[-1]
        case "mean":
            vector = wide.mean(0)
    return F.normalize(vector, dim=0) if params.normalize else vector
