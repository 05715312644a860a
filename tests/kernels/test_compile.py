"""Every Triton kernel compiles, without a device, for all architectures that are promised."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from triton.runtime import driver
from triton.runtime._async_compile import active_mode
from triton.runtime.jit import JITFunction

from octavo.ops.compile_ahead import _Compilers, compile_ahead  # pyright: ignore[reportPrivateUsage]
from octavo.ops.registry import ops
from tests.arch.sources import ROOT
from tools.kernel_cache import absent_driver

KERNELS = {
    *(
        "_norm",
        "_rope",
        "_rope_write",
        "_write",
        "_copy",
        "_attend",
        "_activate",
        "_product",
        "_add_experts",
    ),
    *("_convolve", "_fold", "_narrow", "_count", "_pick"),
}

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 300,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e4,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "hidden_act": "silu",
}


@pytest.mark.parametrize("target", ["cuda:80", "cuda:89", "cuda:90", "cuda:100", "hip:gfx942"])
def test_compile(target: str) -> None:
    lines = run("tests.kernels.compile_ahead", target)
    assert {line.partition(":")[0] for line in lines} == KERNELS


def run(module: str, *arguments: str, **variables: str) -> list[str]:
    """Return the lines that a module prints in a process that does not interpret."""
    environment = {**os.environ, "TRITON_DEFAULT_FP_FUSION": "1", **variables}  # noqa: TID251
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-m", module, *arguments]
    answer = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.splitlines()


def test_a_models_steps_are_compiled_ahead(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    options = ("--max-num-seqs", "1", "--max-model-len", "20")
    first, folder = run("tools.kernel_cache", str(tmp_path), *options, OCTAVO_CACHE=str(cache))
    number = int(first.removeprefix(f"{tmp_path}: ").partition(" ")[0])
    assert folder.startswith(f"{cache / 'triton'}: {number} folders")
    made = {file.stem for file in cache.rglob("*.cubin")}
    assert made >= {"_rope_write", "_norm", "_attend", "_activate", "_narrow", "_count", "_pick"}
    assert number <= 11, "a start compiles each of them"
    assert (cache / "kernels.txt").read_text() == f"0 of {number}"


@pytest.mark.parametrize(("heads", "slots"), [((4, 2, 16), 64), ((32, 8, 128), 300)])
def test_a_start_compiles_what_common_steps_launch(tmp_path: Path, heads: tuple[int, int, int], slots: int) -> None:
    keys = ("num_attention_heads", "num_key_value_heads", "head_dim")
    config = {**CONFIG, **dict(zip(keys, heads, strict=True)), "max_position_embeddings": 4000}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (number,) = run("tests.kernels.start_kinds", str(tmp_path), str(slots))
    assert int(number.partition(" ")[0]) <= 40, "each takes a second"


def test_one_thread_compiles_while_others_launch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path))
    launched: list[tuple[Any, bool]] = []
    monkeypatch.setattr(
        JITFunction, "run", lambda self, *args, grid, warmup, **kwargs: launched.append((args[1], warmup))
    )
    kernel, x = JITFunction(test_every_kernel_file_is_compiled), torch.zeros(64)

    def work() -> None:
        for number in (32, 33):
            kernel[1,](x, number, BLOCK=8)
        other = threading.Thread(target=lambda: kernel[1,](x, 7, BLOCK=8))
        other.start()
        other.join()

    compile_ahead(work, 2)()
    assert launched == [(32, True), (33, True), (7, False)]
    kernel[1,](x, 32, BLOCK=8)
    assert launched[-1] == (32, False)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_interpreters_turns_are_as_long_as_before_when_all_is_compiled(order: tuple[int, int]) -> None:
    """Two engines start in one process; what a third compiles before it is ready changes nothing."""
    before = sys.getswitchinterval()
    behind = [_Compilers(1, 0.01), _Compilers(1, 0.01)]
    assert sys.getswitchinterval() < 0.001 < before
    _Compilers(1, 0.0).end()()
    assert sys.getswitchinterval() < 0.001
    for place in order:
        behind[place].end()()
    assert sys.getswitchinterval() == before


@pytest.mark.parametrize("behind", [False, True])
def test_a_launch_waits_for_its_kernel_or_compiles_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, behind: bool
) -> None:
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path))
    (tmp_path / "_norm.json").touch()
    compilers, kept = list[int](), list[Any]()
    made = SimpleNamespace(
        name="_norm", src="", metadata="", metadata_group={"_norm.json": str(tmp_path / "_norm.json")}
    )

    def compile_one() -> Any:
        compilers.append(threading.get_ident())
        return made

    def launch(*_args: object, **_kwargs: object) -> None:
        mode: Any = active_mode.get()
        mode.submit("key", compile_one, kept.append)

    monkeypatch.setattr(JITFunction, "run", launch)
    monkeypatch.setattr(driver, "_active", absent_driver(90, launchers=False))
    wait = compile_ahead(lambda: JITFunction(test_every_kernel_file_is_compiled)[1,](), 2, behind=behind)
    assert kept[0].name == "_norm"
    wait()
    assert any(one is made for one in kept)
    assert len(compilers) == 1
    if behind:
        assert compilers == [threading.get_ident()], "nobody has begun yet"


_ENDS = """
import time
from types import SimpleNamespace
from triton.runtime import driver
from triton.runtime._async_compile import active_mode
from octavo.ops.compile_ahead import _Compilers, compile_ahead  # pyright: ignore[reportPrivateUsage]
from tools.kernel_cache import absent_driver

def compile_one():
    print("compiled", flush=True)
    time.sleep(0.3)
    return SimpleNamespace(src="", metadata="", metadata_group={"a.json": "a.json"})

def work():
    for number in range(30):
        active_mode.get().submit(str(number), compile_one, lambda kernel: None)

driver._active = absent_driver(90, launchers=False)
compile_ahead(work, 2)
time.sleep(0.1)
"""


def test_a_process_that_ends_waits_for_kernels_under_way_only() -> None:
    command = [sys.executable, "-c", _ENDS]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert len(answer.stdout.splitlines()) == 2


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
