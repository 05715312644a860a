"""The candidates that most ops have: a Triton kernel, one for processors in C++, and the reference in torch."""

from __future__ import annotations

from octavo.ops.candidate import Candidate, Op
from octavo.ops.native import native_candidate


def usual_op(name: str, *, folder: str | None = None, native: str | None = None, recordable: bool = True) -> Op:
    """Return an op whose candidates lie in `octavo/ops/<folder>/`, each a function that is called as the op is.

    folder: the op's name if not given. native: what the library calls the kernel for processors, None if there is none.
    recordable: of the reference.
    """
    place = f"octavo.ops.{folder or name}"
    triton = Candidate(name="triton", path=f"{place}.triton:{name}", kinds=("cuda",))
    torch = Candidate(name="torch", path=f"{place}.reference:{name}", recordable=recordable)
    cpu = () if native is None else (native_candidate(native, f"{place}.cpu:{name}"),)
    return Op(name=name, candidates=(triton, *cpu, torch))
