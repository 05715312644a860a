"""`octavo`: finds the command and imports only that."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from octavo.base.errors import ConfigError, OctavoError
from octavo.base.naming import unknown_name
from octavo.base.version import VERSION

# Command -> what it does. Each is a module of this package with `main(arguments) -> exit status`.
COMMANDS = {
    "serve": "serve a model over HTTP, with OpenAI's routes",
    "chat": "talk to a model in the terminal",
    "run": "answer one prompt and print the answer as it comes",
    "batch": "answer a file of requests, and go on where it was stopped",
    "bench": "measure it: offline, serve, latency, startup",
    "doctor": "show what this machine is and what is chosen on it, for bug reports",
    "demo": "start a server on the embedded model, ask it one question, stop it",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status: 0, 1 when it failed, 2 for a wrong command line, 130 after Ctrl-C."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        status = _run(given)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # Who reads the output wants no more of it (`octavo doctor | head`): what is left to flush goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _run(given: list[str]) -> int:
    command = given[0] if given else "--help"
    if command in ("-h", "--help", "help"):
        print(_help())
        return 0 if given else 2
    if command in ("-V", "--version"):
        print(f"octavo {VERSION}")
        return 0
    if command not in COMMANDS:
        print(f"octavo: error: {unknown_name('command', command, COMMANDS)} (see octavo --help)", file=sys.stderr)
        return 2
    try:
        return importlib.import_module(f"octavo.cli.{command}").main(given[1:])
    except OctavoError as error:
        where = f" ({'--' + error.field.replace('_', '-')})" if isinstance(error, ConfigError) and error.field else ""
        print(f"octavo {command}: error: {error.message}{where}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    except KeyboardInterrupt:
        return 130


def _help() -> str:
    width = max(map(len, COMMANDS))
    rows = [f"  {name:<{width}}  {summary}" for name, summary in COMMANDS.items()]
    lines = ["usage: octavo COMMAND ...", "", "Octavo runs and serves language models.", "", *rows, ""]
    lines += ["octavo COMMAND --help lists a command's flags; octavo --version prints the version."]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
