"""The model that all faults are tried on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.tiny import save_tiny


@pytest.fixture(scope="package")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("faults") / "tiny")
