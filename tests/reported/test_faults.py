"""The table of reported faults: a row for each, and every test that it names is there."""

from __future__ import annotations

import ast
import functools
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.equivalence.features import FEATURES

HERE = Path(__file__).parent
TABLE: dict[str, Any] = tomllib.loads((HERE / "faults.toml").read_text())
IDS = [f"{area}{number:02}" for area, numbers in TABLE["ids"].items() for number in numbers]
ROWS: dict[str, dict[str, Any]] = {name: row for name, row in TABLE.items() if name not in ("ids", "kinds")}


@functools.cache
def _tests_of(file: str) -> frozenset[str]:
    """Return the names of a file's tests, unread by pytest."""
    nodes = ast.parse((HERE.parent / file).read_text()).body
    return frozenset(node.name for node in nodes if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"))


def _assert_there(named: str) -> None:
    file, name = named.split("::")
    assert name in _tests_of(file), named


def test_every_fault_has_one_row() -> None:
    # Two rows of a name are no TOML.
    assert len(IDS) == len(set(IDS)) == 184
    assert list(ROWS) == IDS


@pytest.mark.parametrize("fault", ROWS)
def test_a_fault_is_tried_or_says_why_not(fault: str) -> None:
    row = ROWS[fault]
    assert set(row) <= {"what", "kind", "tests", "matrix", "untried"}
    assert 10 <= len(row["what"]) <= 100
    assert set(row["kind"].split("/")) <= set(TABLE["kinds"])
    assert len(set(row["tests"])) == len(row["tests"])
    assert row["tests"] or len(row["untried"]) > 10
    for named in row["tests"]:
        _assert_there(named)
    assert set(row.get("matrix", ())) <= set(FEATURES)


def test_every_kind_has_tests_of_anything() -> None:
    for tests in TABLE["kinds"].values():
        assert tests
        for named in tests:
            _assert_there(named)


def test_what_is_tried_here_is_in_the_table() -> None:
    """A test of this folder that no row names has no reason to be here."""
    named = {one for row in ROWS.values() for one in row["tests"]}
    files = [file for file in HERE.glob("test_*.py") if file.name != Path(__file__).name]
    assert {f"reported/{file.name}::{name}" for file in files for name in _tests_of(f"reported/{file.name}")} <= named
