"""What users rely on changes only in view, and is never taken away at once."""

from __future__ import annotations

from pathlib import Path

from octavo import __version__
from tools.public_api import DEPRECATED, broken, render

CURRENT = Path(__file__).with_name("public_api.txt")
# Copied from the other file when a version is released; there has been none.
RELEASED = Path(__file__).with_name("public_api_released.txt")


def test_the_snapshot_is_what_is_there() -> None:
    assert CURRENT.read_text(encoding="utf-8") == render(), (
        "public names have changed: python -m tools.pages writes the snapshot anew; read its diff, and CONTRIBUTING's rule"
    )


def test_names_have_their_parameters() -> None:
    lines = render().splitlines()
    assert "LLM.shutdown()" in lines
    assert "SamplingParams.max_tokens = 16" in lines
    assert "error OctavoError(Exception)" in lines
    assert "command serve" in lines
    assert "option max_model_len" in lines
    assert any(line.startswith("LLM.generate(prompts, sampling_params=None, ") for line in lines)


def test_nothing_that_was_released_is_gone_without_warning() -> None:
    released = RELEASED.read_text(encoding="utf-8").splitlines() if RELEASED.exists() else []
    assert broken(released, render().splitlines(), __version__, DEPRECATED) == []


def test_the_rule() -> None:
    released, now = ["class A(x)", "A.f()", "option b"], ["class A(x)", "option c"]
    assert broken(released, now, "0.3.0", {}) == ["A.f()", "option b"]
    # Deprecated in the same minor version: too early.
    assert broken(released, now, "0.3.1", {"A.f()": "0.3.0", "option b": "0.2.4"}) == ["A.f()"]
    assert broken(released, now, "0.4.0", {"A.f()": "0.3.0", "option b": "0.2.4"}) == []
    assert broken(released, released, "0.3.0", {}) == []
