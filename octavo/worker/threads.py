"""How many threads compute on the host: one number for the tensor library and for the processor's kernels."""

from __future__ import annotations

import torch

from octavo.base.native import library
from octavo.device.host import host_cores
from octavo.worker.spec import WorkerSpec


def take_threads(spec: WorkerSpec) -> None:
    """Settle it for the calling thread, which must be the one that computes; ranks of a host share its cores.

    What the spec asks for, or as many as the tensor library would take (OMP_NUM_THREADS, or the cores that affinity allows),
    and no more than a control group allows.
    """
    asked = spec.threads or min(torch.get_num_threads(), host_cores())
    share = max(1, asked // spec.num_ranks)
    torch.set_num_threads(share)
    found = library()
    if not isinstance(found, str):
        found.resize(share)
