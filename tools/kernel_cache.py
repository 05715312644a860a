"""Compile the Triton kernels of a model's steps before there is a GPU: what a first start would spend its time on.

    OCTAVO_CACHE=FOLDER python -m tools.kernel_cache MODEL... [--arch 90] [--max-num-seqs 256] [--max-model-len N]

Does the steps that an engine does at start to find its kernels, with tensors that have a shape and no
memory; where a kernel would be launched it is compiled. The folder can be copied to machines with the same version of Triton
and Python. No kernel runs, and no weights are read: a folder with a config.json is enough.
"""

from __future__ import annotations

import argparse
import functools
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from octavo.base.env import prepare_kernel_caches, read_env
from octavo.base.facts import DeviceFacts
from octavo.checkpoint.config_keys import settle_extras
from octavo.checkpoint.open import open_checkpoint
from octavo.checkpoint.record import Checkpoint
from octavo.config.model import ModelConfig
from octavo.device.cpu import CpuDevice
from octavo.device.host import host_cores
from octavo.models.registry import load_model
from octavo.nn.assembly import Binding
from octavo.nn.formats.dense import DenseFormat
from octavo.nn.parallel.mesh import Mesh
from octavo.ops.compile_ahead import compile_ahead
from octavo.ops.registry import bind
from octavo.worker.loader.assemble import (
    AssembledModel,
    assign_formats,
    bind_layers,
    finalize,
    kept_layers,
    materialize,
    place,
)
from octavo.worker.spec import WorkerSpec
from octavo.worker.warmup import Warmup


@dataclass(slots=True)
class Absent(CpuDevice):
    """A GPU of this kind that is not here: its tensors have shapes and no memory."""

    arch: int

    @property
    def facts(self) -> DeviceFacts:
        """What such a GPU is, as far as choices depend on it."""
        return DeviceFacts(
            kind="cuda",
            name=f"sm_{self.arch}",
            arch=f"sm_{self.arch}",
            num_cores=132,
            total_memory=2**36,
            dtypes=("float32", "bfloat16", "float16"),
            features=frozenset(("queue", "graphs")),
        )

    @property
    def torch_device(self) -> torch.device:
        """Where tensors without memory live."""
        return torch.device("meta")

    def allocate(self, num_bytes: int) -> torch.Tensor:
        """Return uint8 `[num_bytes]` without memory."""
        return torch.empty(num_bytes, dtype=torch.uint8, device="meta")


def absent_driver(arch: int, *, launchers: bool) -> Any:
    """Return Triton's driver of such a device. launchers: compile what calls kernels too, with a C compiler and the driver."""
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia.driver import CudaLauncher

    from tools.absent_gpu import AbsentDriver

    found = AbsentDriver(GPUTarget("cuda", arch, 32), "meta")
    if launchers:
        found.launcher_cls = CudaLauncher
    return found


def assemble(checkpoint: Checkpoint, dtype: str, device: Absent, max_model_len: int) -> AssembledModel:
    """Build a model as the loader does, but without weights."""
    with torch.device("meta"):
        model_class = load_model(checkpoint.facts.architecture)
        model = model_class(settle_extras(checkpoint.facts, model_class.config_keys))
    torch_dtype = getattr(torch, dtype)
    assign_formats(model, lambda _path, _num_ins: DenseFormat(dtype=torch_dtype))
    place(model, Mesh(), torch_dtype)
    # What the driver would launch is not compiled by Triton.
    kernels = bind(device.facts, dtype, {"logits": "torch", "few_rows": "apart"})
    binding = Binding(
        facts=device.facts,
        dtype=dtype,
        device=device.torch_device,
        kernels=kernels,
        mesh=Mesh(),
        max_model_len=max_model_len,
    )
    bind_layers(model, binding)
    materialize(model, device.torch_device)
    finalize(model)
    return AssembledModel(model=model, layers=kept_layers(model), kernels=kernels, decisions=())


def steps(checkpoint: Checkpoint, device: Absent, dtype: str, max_num_seqs: int, max_model_len: int) -> None:
    """Do what an engine does at its start."""
    loaded = assemble(checkpoint, dtype, device, max_model_len)
    spec = WorkerSpec(
        checkpoint=checkpoint,
        dtype=dtype,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=8192,
    )
    warmup = Warmup(spec, device, loaded, Mesh(), graphs=True)
    warmup.kept_back()
    warmup.compile_rest()


def main() -> None:
    """Compile for every model that is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--arch", type=int, default=90)
    parser.add_argument("--max-num-seqs", type=int, default=256)
    parser.add_argument("--max-model-len", type=int)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--launchers", action="store_true", help="compile what calls the kernels too; needs the driver")
    given = parser.parse_args()
    prepare_kernel_caches()
    from triton.runtime import driver

    driver.set_active(absent_driver(given.arch, launchers=given.launchers))
    folder = Path(read_env().cache, "triton")
    for model in given.models:
        began, before = time.perf_counter(), len(list(folder.rglob("*.cubin")))
        checkpoint = open_checkpoint(ModelConfig(model=model, skip_tokenizer_init=True, load_format="dummy"))
        longest = given.max_model_len or checkpoint.facts.max_position
        with torch.inference_mode():
            work = functools.partial(steps, checkpoint, Absent(given.arch), given.dtype, given.max_num_seqs, longest)
            compile_ahead(work, host_cores())()
        print(
            f"{model}: {len(list(folder.rglob('*.cubin'))) - before} kernels in {time.perf_counter() - began:.1f} s",
            flush=True,
        )
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    print(f"{folder}: {len(list(folder.iterdir()))} folders, {size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
