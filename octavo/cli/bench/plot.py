"""A picture of a run: how latencies are distributed, and what happened when."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.base.errors import ConfigError
from octavo.cli.bench.figures import Measured, tokens_by_second

_NAMES = {"ttft": "to the first token", "tpot": "a token after it", "e2el": "to the end"}


def draw(path: str | None, requests: Sequence[Measured], title: str) -> None:
    """Draw a run into a file, if one is given. Raises ConfigError without matplotlib, or if the file cannot be written."""
    if path is None:
        return
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("a plot needs matplotlib: pip install 'octavo[bench]'", field="plot") from error
    good = [one for one in requests if one.error is None]
    start = min((one.start for one in good), default=0.0)
    figure = Figure(figsize=(11, 8), layout="constrained")
    figure.suptitle(title)
    spread, rate, lanes = figure.subplots(3, 1, height_ratios=(2, 1, 2))
    for name, meaning in _NAMES.items():
        values = sorted(one.latencies[name] for one in good if name in one.latencies)
        if values:
            spread.plot(
                values, [(i + 1) / len(values) for i in range(len(values))], label=meaning, drawstyle="steps-post"
            )
    spread.set(xscale="log", xlabel="milliseconds", ylabel="share of requests")
    spread.legend()
    tokens = tokens_by_second(good)
    rate.step(range(len(tokens)), tokens, where="post")
    rate.set(xlabel="seconds", ylabel="output tokens/s")
    for lane, one in enumerate(sorted(good, key=lambda each: each.start)):
        first = one.tokens[0] if one.tokens else one.end
        lanes.plot((one.start - start, first - start), (lane, lane), color="tab:orange", linewidth=1)
        lanes.plot((first - start, one.end - start), (lane, lane), color="tab:blue", linewidth=1)
    lanes.set(xlabel="seconds (orange: until the first token)", ylabel="request")
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot draw into {path}: {error}", field="plot") from error
