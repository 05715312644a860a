"""The examples run, as they are, on the embedded model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.real.serving import serving

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"


def _run(*command: str) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # noqa: TID251
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True, check=True, timeout=300
    ).stdout


@pytest.mark.parametrize(
    ("script", "shown"),
    [
        ("offline.py", ["The capital of France is Paris", "0: Once upon a time", "1: Once upon a time"]),
        ("chat.py", ["> My name is Ada. What is a book?", "> What is my name?", "tokens cached)"]),
        ("stream.py", ["whole: ", "part: "]),
    ],
)
def test_scripts(script: str, shown: list[str]) -> None:
    out = _run(str(EXAMPLES / script))
    assert [text for text in shown if text not in out] == [], out


def test_a_command_that_talks_to_a_person_shows_no_log() -> None:
    command = ["-m", "octavo.cli.main", "run", "--raw", "The capital of France is", "--max-tokens", "1"]
    done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=True, timeout=300)
    assert (done.stdout, done.stderr) == (" Paris\n", "")


def test_a_server_its_client_and_a_batch(tmp_path: Path) -> None:
    answers = tmp_path / "answers.jsonl"
    with serving("--config", str(EXAMPLES / "serve.yaml")) as url:
        out = _run(str(EXAMPLES / "openai_client.py"), url)
        _run("-m", "octavo.cli.main", "batch", str(EXAMPLES / "requests.jsonl"), str(answers), "--url", url)
    assert out.startswith(" Paris")
    found = {one["custom_id"]: one for one in map(json.loads, answers.read_text().splitlines())}
    assert {name: one["error"] for name, one in found.items()} == {"colours": None, "capital": None}
    assert found["capital"]["response"]["body"]["choices"][0]["text"].startswith(" Paris")


def test_every_example_is_run_and_listed() -> None:
    listed = (EXAMPLES / "README.md").read_text()
    for file in EXAMPLES.iterdir():
        assert file.name == "README.md" or f"`{file.name}`" in listed
        assert file.name in (__file__, "README.md") or file.name in Path(__file__).read_text()
