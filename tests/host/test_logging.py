"""Logs are quiet where a command talks to a person, unless the user says otherwise."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import datetime

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


JSON_CODE = """
import logging, os, subprocess, sys
from octavo.base.logging import get_logger, set_log_format
log = get_logger("octavo.a")
log.info("as before")
set_log_format("json")
log.info("two\\nlines of %s", "ü", extra={"fields": {"status": 503}})
try:
    1 / 0
except ZeroDivisionError:
    log.exception("broke")
logging.getLogger("somebody.else").warning("theirs")
subprocess.run([sys.executable, "-c", "from octavo.base.logging import get_logger; get_logger('octavo.b').info('child')"])
raise KeyError("nobody caught it")
"""


def test_json_is_one_object_a_line_whoever_writes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OCTAVO_LOG_FORMAT", raising=False)
    monkeypatch.setenv("OCTAVO_LOG_LEVEL", "INFO")
    done = subprocess.run([sys.executable, "-c", JSON_CODE], capture_output=True, text=True, check=False)
    first, *others = done.stderr.splitlines()
    assert first.endswith("octavo.a] as before")
    rows = [json.loads(line) for line in others]
    assert [row["message"] for row in rows] == ["two\nlines of ü", "broke", "theirs", "child", "the process failed"]
    assert [row["level"] for row in rows] == ["INFO", "ERROR", "WARNING", "INFO", "CRITICAL"]
    assert [row["logger"] for row in rows] == ["octavo.a", "octavo.a", "somebody.else", "octavo.b", "octavo"]
    assert rows[0]["status"] == 503
    assert "ZeroDivisionError" in rows[1]["exception"]
    assert "nobody caught it" in rows[4]["exception"]
    assert rows[3]["process"] != rows[0]["process"]
    assert datetime.fromisoformat(rows[0]["time"]).tzinfo is not None


def test_a_format_that_is_none_is_said() -> None:
    code = "from octavo.base.logging import get_logger; get_logger('octavo.a').info('text')"
    environment = {**os.environ, "OCTAVO_LOG_FORMAT": "xml", "OCTAVO_LOG_LEVEL": "INFO"}  # noqa: TID251
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    warning, line = done.stderr.splitlines()
    assert "OCTAVO_LOG_FORMAT 'xml' is neither text nor json" in warning
    assert line.endswith("octavo.a] text")
