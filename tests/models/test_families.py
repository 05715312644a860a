"""Every architecture gives the oracle's logits and greedy tokens, and docs/models.md says so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.models.families import ENCODERS, FAMILIES
from tests.models.measure import PAGE, described, measure, measure_encoder


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_and_greedy_tokens(tmp_path: Path, name: str) -> None:
    found = measure(FAMILIES[name], tmp_path)
    assert found.logits < 1e-3
    assert found.wrong == 0
    assert found.near <= 3
    assert found.distinct > 10, "an oracle that always says the same proves nothing"
    assert found.cached > 100, "the second time, prompts come from the prefix cache"


@pytest.mark.parametrize("name", ENCODERS)
def test_vectors_and_tokens_of_models_with_an_encoder(tmp_path: Path, name: str) -> None:
    found = measure_encoder(name, tmp_path)
    assert found.logits < 1e-3
    assert (found.wrong, found.near) == (0, 0)


def test_the_page_has_every_architecture_with_its_file_and_lines() -> None:
    page = re.findall(r"^\| (\w+) \| `(.+)` \| (\d+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert {name: (file, int(lines)) for name, file, lines in page} == described(), "python -m tests.models.measure"
    assert {*FAMILIES, *ENCODERS} == set(described()), (
        "a model is a file, a row in checkpoint/architectures.json, and a row in families.py"
    )
    lines = sorted(int(lines) for _, _, lines in page)
    assert lines[len(lines) // 2] <= 150
