"""Every import contract bites: wrong imports are planted in a copy of the tree, and each must be reported.

That the tree itself keeps the contracts is `lint-imports`' own verdict, in `make check`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINT = "from importlinter.cli import lint_imports_command; lint_imports_command()"

# Planted module -> its source; contract -> the imports that the report must name under it.
PLANTS = {
    "octavo.base.planted_up": "import octavo.protocol.step",
    "octavo.base.planted_array": "import numpy",
    "octavo.protocol.planted_stranger": "from octavo.config import engine",
    "octavo.frontend.planted_stranger": "from octavo.worker import planted",
    "octavo.worker.planted": "",
    "octavo.engine.planted_model": "from octavo.models import planted_one",
    "octavo.engine.planted_lazy": "def load():\n    import torch",
    "octavo.frontend.planted_typing": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from torch import Tensor",
    "octavo.checkpoint.planted_oracle": "import transformers",
    "octavo.models.planted_one": "from octavo.models import planted_two\nfrom octavo.nn.formats import planted_format",
    "octavo.models.planted_two": "from octavo.ops import planted_kernel\nfrom octavo.nn.parallel import planted_mesh",
    "octavo.nn.formats.planted_format": "",
    "octavo.nn.parallel.planted_mesh": "",
    "octavo.ops.planted_kernel": "import triton\nfrom octavo.device import planted_door",
    "octavo.nn.planted_triton": "import triton",
    "octavo.nn.attention.planted_triton": "import triton",
    "octavo.device.planted_door": "",
    "octavo.frontend.planted_socket": "import zmq",
    "octavo.worker.planted_ring_a": "from octavo.worker import planted_ring_b",
    "octavo.worker.planted_ring_b": "from octavo.worker import planted_ring_a",
    "octavo.misc.planted": "",
}
EXPECTED = {
    "rooms are layered": [
        "octavo.base.planted_up -> octavo.protocol.step",
        "octavo.protocol.planted_stranger -> octavo.config.engine",
        "octavo.frontend.planted_stranger -> octavo.worker.planted",
        "octavo.engine.planted_model -> octavo.models.planted_one",
        "octavo.misc",
    ],
    "the host side is free of torch": [
        "octavo.engine.planted_lazy -> torch",
        "octavo.frontend.planted_typing -> torch",
        "octavo.checkpoint.planted_oracle -> transformers",
    ],
    "base is the standard library alone": ["octavo.base.planted_array -> numpy"],
    "model files see only nn and base": ["octavo.models.planted_two -> octavo.ops.planted_kernel"],
    "model files know no format and no mesh": [
        "octavo.models.planted_one -> octavo.nn.formats.planted_format",
        "octavo.models.planted_two -> octavo.nn.parallel.planted_mesh",
    ],
    "model files are independent": ["octavo.models.planted_one -> octavo.models.planted_two"],
    "the device is protected": ["octavo.ops.planted_kernel -> octavo.device.planted_door"],
    "triton stays in ops and attention": ["octavo.nn.planted_triton -> triton"],
    "transformers is for tests": ["octavo.checkpoint.planted_oracle -> transformers"],
    "zmq has one home": ["octavo.frontend.planted_socket -> zmq"],
    "no ring inside any room": ["octavo.worker", "planted_ring_"],
}


@pytest.fixture(scope="module")
def sections(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What lint-imports says of the planted tree: contract -> its part of the report."""
    root = tmp_path_factory.mktemp("planted")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "octavo", root / "octavo", ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", root)
    for module, source in PLANTS.items():
        file = root / (module.replace(".", "/") + ".py")
        if not file.parent.exists():
            file.parent.mkdir()
            (file.parent / "__init__.py").touch()
        file.write_text(source + "\n")
    command = [sys.executable, "-c", LINT, "--config", "pyproject.toml", "--no-cache"]
    answer = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert answer.returncode == 1, answer.stdout + answer.stderr
    _, _, details = answer.stdout.partition("Broken contracts")
    parts: dict[str, str] = {}
    name = ""
    for line in details.splitlines():
        name = line if line in EXPECTED else name
        parts[name] = parts.get(name, "") + line + "\n"
    return parts


@pytest.mark.parametrize("contract", EXPECTED)
def test_planted_imports_are_reported(sections: dict[str, str], contract: str) -> None:
    assert contract in sections, sections.keys()
    missing = [found for found in EXPECTED[contract] if found not in sections[contract]]
    assert missing == [], sections[contract]


def test_what_is_allowed_is_not_reported(sections: dict[str, str]) -> None:
    assert "octavo.nn.attention.planted_triton" not in "".join(sections.values())
    assert "octavo.ops.planted_kernel" not in sections["triton stays in ops and attention"]
    assert "-> octavo.nn" not in sections["model files see only nn and base"]


def test_every_contract_is_tried() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    assert {contract["name"] for contract in contracts} == set(EXPECTED)
