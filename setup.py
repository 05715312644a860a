"""Wheels bring the processor's kernels: a library that is linked to neither Python nor torch, one wheel for a platform."""

from __future__ import annotations

import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

sys.path.insert(0, str(Path(__file__).resolve().parent))

from octavo.base.native import LIBRARY
from tools.build_cpu import BuildError, build


class BuildKernels(build_py):
    """Compiles first; for a tree that is used where it lies, what this machine needs. Without a compiler, what is installed
    computes with torch alone, and says so."""

    def run(self) -> None:
        try:
            build(here=self.editable_mode)
        except BuildError as error:
            # Nor one that was made before, of other sources.
            for folder in (LIBRARY.parents[3], Path(self.build_lib)):
                (folder / LIBRARY.relative_to(LIBRARY.parents[3])).unlink(missing_ok=True)
            self.warn(f"the processor's kernels are left out: {error}")
        super().run()


class PlatformWheel(bdist_wheel):
    """A wheel for any Python of this platform, or for any platform where there are no kernels."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self) -> tuple[str, str, str]:
        return ("py3", "none", super().get_tag()[2] if LIBRARY.exists() else "any")


setup(cmdclass={"build_py": BuildKernels, "bdist_wheel": PlatformWheel})
