"""The demo fails when its server does."""

from __future__ import annotations

import pytest

from octavo.cli.main import main


def test_a_server_that_cannot_start_fails_the_demo(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--model", "/nowhere/model.gguf"]) == 1
    shown = capfd.readouterr()
    assert "/nowhere/model.gguf" in shown.err
    assert "before it was ready" in shown.err
