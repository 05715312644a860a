"""Logs are quiet where a command talks to a person, unless the user says otherwise."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
from octavo.base.logging import get_logger, quiet
from octavo.base.env import read_env
quiet()
get_logger("octavo.a").info("a decision")
get_logger("octavo.a").warning("a warning")
print(read_env().log_level)
"""


@pytest.mark.parametrize(
    ("level", "shown", "children"), [(None, ["a warning"], "WARNING"), ("INFO", ["a decision", "a warning"], "INFO")]
)
def test_quiet(level: str | None, shown: list[str], children: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OCTAVO_LOG_LEVEL", raising=False)
    if level is not None:
        monkeypatch.setenv("OCTAVO_LOG_LEVEL", level)
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert [line.split("] ")[1] for line in done.stderr.splitlines()] == shown
    assert done.stdout == children + "\n"
