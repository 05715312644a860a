"""Compiles the kernels in CUDA C++: `python -m tools.build_cuda`. It needs nvcc and no device.

For every architecture, machine code: nothing is compiled where Octavo runs.
"""

from __future__ import annotations

import argparse
import subprocess

from octavo.ops.cuda_module import FOLDER, MODULES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nvcc", default="nvcc")
    options = parser.parse_args()
    for name, archs in MODULES.items():
        codes = [f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in archs]
        target = FOLDER / f"{name}.fatbin"
        command = [options.nvcc, "-fatbin", "-std=c++17", "-O3", *codes, "-o", str(target), str(FOLDER / f"{name}.cu")]
        subprocess.run(command, check=True)
        print(f"{target}: {target.stat().st_size >> 10} KiB")


if __name__ == "__main__":
    main()
