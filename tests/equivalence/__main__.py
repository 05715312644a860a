"""Equivalence by hand.

    python -m tests.equivalence --combinations 3000 --seed 7 --seconds 600
    python -m tests.equivalence --model llama --case 'prefix=warm budget=16 seed=5'

Ends with status 1 if an answer differs. Several --case options are asked of one engine, in order.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import warnings
from pathlib import Path


def main(arguments: list[str]) -> int:
    """Run the cases that are asked for; print a line per model and everything that differs."""
    # Read by libraries when they are loaded, and by the processes that start here.
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # noqa: TID251
    os.environ.setdefault("OCTAVO_LOG_LEVEL", "WARNING")  # noqa: TID251
    from tests.equivalence.draw import draw_cases
    from tests.equivalence.features import Case
    from tests.equivalence.models import MODELS, PLAIN, TinyModel
    from tests.equivalence.nursery import nursery
    from tests.equivalence.runner import Report, Runner

    parser = argparse.ArgumentParser(prog="python -m tests.equivalence", description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=MODELS, action="append", help="one of the kinds; all if not given")
    parser.add_argument("--case", type=Case.parse, action="append", help="one combination, as a failure prints it")
    parser.add_argument("--combinations", type=int, default=300, help="how many to draw, all models together")
    parser.add_argument("--seed", type=int, default=0, help="of the drawing")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop drawing after this time")
    given = parser.parse_args(arguments)
    names = given.model or list(MODELS)
    began, total = time.monotonic(), Report()
    with tempfile.TemporaryDirectory() as folder, nursery():
        for turn, name in enumerate(names, 1):
            report = Report()
            count, seed = given.combinations // len(names), given.seed * len(MODELS) + turn
            cases = given.case or draw_cases(count, seed, PLAIN.get(name, ()))
            model = TinyModel(name, Path(folder))
            Runner(model, report).run(cases, began + given.seconds * turn / len(names))
            print(f"{name}: {report}", *report.differences, sep="\n", flush=True)
            total.add(report)
    print(f"all: {total}")
    return 1 if total.differences else 0


if __name__ == "__main__":
    warnings.simplefilter("error")
    sys.exit(main(sys.argv[1:]))
