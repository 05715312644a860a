"""`octavo bench`: how fast it is, on work that other engines can be measured on too. One file a kind of measurement."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from octavo.base.naming import unknown_name

KINDS = {
    "offline": "a batch through LLM.generate: tokens a second",
    "serve": "requests to a server as they would come: time to first token, between tokens, to the end",
    "latency": "one batch again and again: seconds to its end",
    "startup": "seconds from the command to a ready server and to its first token",
}
# What vLLM calls the same.
_ALIASES = {"throughput": "offline"}


def main(arguments: Sequence[str]) -> int:
    """Run one kind of measurement; return the exit status."""
    kind = arguments[0] if arguments else "--help"
    if kind in ("-h", "--help"):
        rows = [f"  {name:<8}  {summary}" for name, summary in KINDS.items()]
        print("\n".join(["usage: octavo bench KIND ...", "", "Measure Octavo.", "", *rows]))
        if arguments:
            raise SystemExit(0)
        return 2
    name = _ALIASES.get(kind, kind)
    if name not in KINDS:
        print(f"octavo bench: error: {unknown_name('kind', kind, KINDS)} (see octavo bench --help)", file=sys.stderr)
        return 2
    return importlib.import_module(f"octavo.cli.bench.{name}").main(arguments[1:])
