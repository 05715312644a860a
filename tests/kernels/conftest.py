"""Where there is no CUDA device, Triton's kernels run in its interpreter, which has to be said before they are imported."""

from __future__ import annotations

import os
import sys

import torch

if not torch.cuda.is_available():  # noqa: TID251
    assert "triton" not in sys.modules, "Triton was imported before it could be told to interpret"
    os.environ["TRITON_INTERPRET"] = "1"  # noqa: TID251
