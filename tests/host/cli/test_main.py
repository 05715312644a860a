"""The `octavo` command: help, version, errors, and how little it imports."""

from __future__ import annotations

import subprocess
import sys

import pytest

from octavo import __version__
from octavo.cli import main as cli

HEAVY = (
    "torch",
    "numpy",
    "msgspec",
    "starlette",
    "uvicorn",
    "httpx",
    "prometheus_client",
    "tokenizers",
    "jinja2",
    "zmq",
)


def test_help_lists_every_command_and_imports_nothing_heavy() -> None:
    code = (
        "import sys; from octavo.cli.main import main; status = main(['--help']); "
        f"print([name for name in {HEAVY!r} if name in sys.modules]); sys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    for command in cli.COMMANDS:
        assert f"\n  {command} " in done.stdout


def test_a_command_line_tool_that_fronts_an_engine_does_not_import_torch() -> None:
    code = (
        "import sys, octavo.cli.serve, octavo.cli.chat, octavo.cli.run, octavo.cli.demo; print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"octavo {__version__}\n"


def test_an_unknown_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serv"]) == 2
    assert "unknown command 'serv'; did you mean 'serve'?" in capsys.readouterr().err


def test_no_command_shows_the_help_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    assert "usage: octavo COMMAND" in capsys.readouterr().out


@pytest.mark.parametrize("command", list(cli.COMMANDS))
def test_every_command_has_its_help(capsys: pytest.CaptureFixture[str], command: str) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([command, "--help"])
    assert ended.value.code == 0
    assert f"usage: octavo {command}" in capsys.readouterr().out


def test_a_value_out_of_range_names_the_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve", "demo", "--max_num_seqs", "0"]) == 2
    expected = "octavo serve: error: max_num_seqs must be between 1 and 65536, not 0 (--max-num-seqs)\n"
    assert capsys.readouterr().err == expected


# argparse does not mind who reads its help.
@pytest.mark.parametrize(("arguments", "status"), [(["--help"], 1), (["serve", "--help"], 0), (["doctor"], 1)])
def test_a_reader_that_leaves_is_no_error(arguments: list[str], status: int) -> None:
    command = [sys.executable, "-m", "octavo.cli.main", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert "Error" not in process.stderr.read()
    assert process.returncode == status
