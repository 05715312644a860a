"""Every Triton kernel compiles, without a device, for all architectures that are promised."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from octavo.ops.registry import ops
from tests.arch.sources import ROOT

KERNELS = {
    *(
        "_norm",
        "_rope",
        "_rope_write",
        "_write",
        "_copy",
        "_attend",
        "_add_up",
        "_activate",
        "_product",
        "_add_experts",
    ),
    *("_convolve", "_fold"),
}


@pytest.mark.parametrize("target", ["cuda:80", "cuda:89", "cuda:90", "cuda:100", "hip:gfx942"])
def test_compile(target: str) -> None:
    environment = {**os.environ, "TRITON_DEFAULT_FP_FUSION": "1"}  # noqa: TID251
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-m", "tests.kernels.compile_ahead", target]
    answer = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    assert {line.partition(":")[0] for line in answer.stdout.splitlines()} == KERNELS


def test_every_kernel_file_is_compiled() -> None:
    files = {path.parent.name for path in (ROOT / "octavo/ops").glob("*/triton.py")}
    calls = (ROOT / "tests/kernels/compile_ahead.py").read_text()
    assert {
        name
        for name in files
        if f'"{name}.triton:' not in calls and f'"{name.removesuffix("_attention")}", ' not in calls
    } == set()
    offered = {c.path.split(".")[2] for op in ops().values() for c in op.candidates if c.name == "triton"}
    assert offered == files
