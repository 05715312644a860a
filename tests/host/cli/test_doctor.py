"""`octavo doctor`: every section has its facts, secrets stay hidden, and what is broken is said without hiding the rest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from octavo import __version__
from octavo.base.env import known_variables
from octavo.base.errors import ConfigError
from octavo.base.kernel_cache import note_kernels
from octavo.cli import doctor
from octavo.launch import survey_devices
from octavo.ops.registry import ops


def _report(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert doctor.main(["--json", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


def test_facts_choices_and_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    report = _report(capsys)
    assert list(report) == ["octavo", "packages", "machine", "device", "kernels", "attention", "caches",
                            "environment", "plugins", "problems"]  # fmt: skip
    assert report["octavo"]["version"] == __version__
    assert report["packages"]["torch"] == torch.__version__
    facts = survey_devices()[0]
    assert report["device"]["chosen"] == f"{facts.kind}: {facts.name}"
    assert report["device"]["features"] == sorted(facts.features)
    assert set(report["kernels"]) == {"dtype", *ops()}
    assert report["kernels"]["dtype"] == facts.dtypes[0]
    assert all(": " in reason for op, reason in report["kernels"].items() if op != "dtype")
    assert report["attention"]["chosen"].startswith("attention of heads of 128: ")
    assert report["problems"] == []


def test_the_state_of_the_kernel_cache(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path))
    assert _report(capsys)["caches"]["kernels"] == "0 compiled"
    for name in ("A", "B"):
        (tmp_path / "triton" / name).mkdir(parents=True)
        (tmp_path / "triton" / name / "_norm.cubin").touch()
    note_kernels(9, 12)
    note_kernels(11, 12)
    assert _report(capsys)["caches"]["kernels"] == "2 compiled; the last start found 11 of 12 that it wanted"
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "none"))
    note_kernels(11, 12)
    assert _report(capsys)["caches"]["kernels"] == "0 compiled"


def test_a_model_and_the_dtype_that_was_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    report = _report(capsys, "demo", "--dtype", "bfloat16", "--max-model-len", "100")
    assert report["kernels"]["dtype"] == "bfloat16"
    assert report["model"]["architecture"] == "LlamaForCausalLM"
    assert (report["model"]["positions"], report["model"]["vocabulary"]) == (8192, 49152)
    assert "dtype bfloat16: asked for; max_model_len 100: asked for" in report["model"]["decisions"]


def test_secrets_stay_hidden(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in known_variables():
        monkeypatch.setenv(name, "DEBUG")
    monkeypatch.setenv("OCTAVO_PLUGINS", "mine")
    monkeypatch.setenv("OCTAVO_CPU_LEVEL", "scalar")  # Another is looked at, unless a test before has done so.
    for name in ("HF_TOKEN", "OCTAVO_API_KEY", "OCTAVO_ADMIN_API_KEY"):
        monkeypatch.setenv(name, "swordfish")
    assert doctor.main([]) == 0
    text = capsys.readouterr().out
    assert "swordfish" not in text
    assert text.count("(hidden)") == 3
    assert "  OCTAVO_PLUGINS        mine\n" in text
    assert text.startswith("```text\n[octavo]\n")
    assert text.endswith("[problems]\n  none\n```\n")


def test_what_is_broken_is_said_and_the_rest_still_shown() -> None:
    def broken() -> dict[str, Any]:
        raise ConfigError("this machine has no device")

    report, problems = doctor.examine({"device": broken, "packages": lambda: {"torch": "missing", "numpy": "2.0"}})
    assert report == {"device": {}, "packages": {"torch": "missing", "numpy": "2.0"}}
    assert problems == ["device: ConfigError: this machine has no device", "packages: torch is not installed"]
    assert doctor.render(report, problems).splitlines()[-4:] == [
        "[problems]", "  device: ConfigError: this machine has no device", "  packages: torch is not installed", "```",
    ]  # fmt: skip


def test_a_device_that_was_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert _report(capsys, "--device", "cpu")["device"]["chosen"].startswith("cpu: ")
    assert doctor.main(["--device", "cppu"]) == 1
    assert "device: ConfigError: unknown device 'cppu'; did you mean 'cpu'?" in capsys.readouterr().out


def test_a_problem_is_the_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main(["no/such/model.gguf"]) == 1
    assert "  model: CheckpointError: " in capsys.readouterr().out
