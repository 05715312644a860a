"""Simulation by hand.

    python -m tests.simulation --seeds 5000 --first 1000
    python -m tests.simulation --first 4711 --story

Ends with status 1 at the first seed at which something went wrong, and tells its end.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback

from tests.simulation.world import World


def main(arguments: list[str]) -> int:
    """Run some seeds."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=1, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--story", action="store_true", help="tell all that happens")
    given = parser.parse_args(arguments)
    began, crashes, preemptions, tokens = time.monotonic(), 0, 0, 0
    for seed in range(given.first, given.first + given.seeds):
        world = World(seed)
        try:
            world.run()
        except Exception:  # noqa: BLE001 - whatever a seed breaks is a finding
            print(*(world.story if given.story else world.story[-30:]), traceback.format_exc(), sep="\n")
            print(f"see it again: python -m tests.simulation --first {seed} --story")
            return 1
        if given.story:
            print(*world.story, sep="\n")
        crashes, preemptions = crashes + world.num_crashes, preemptions + world.num_preemptions
        tokens += world.num_tokens
    taken = time.monotonic() - began
    print(f"{given.seeds} seeds in {taken:.0f} s: {tokens} tokens, {preemptions} preemptions, {crashes} dead engines")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
