"""Runs cases against the oracle, keeps engines from case to case, and says how to run again what went wrong."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from octavo.base.errors import OctavoError
from octavo.protocol.sampling import SamplingParams
from tests.equivalence.engines import Engine, start_engine
from tests.equivalence.features import FEATURES, Case, Happened, possible
from tests.equivalence.models import MAX_MODEL_LEN, TinyModel
from tests.equivalence.workload import complaints, make_jobs

# Fills the cache: the prompts are what counts.
WARMING = SamplingParams(temperature=0.0, max_tokens=2)


@dataclass(slots=True, kw_only=True)
class Report:
    """What came out of some cases. differences: one text each, with the line that reproduces it."""

    cases: int = 0
    answers: int = 0
    ties: int = 0
    engines: int = 0
    seconds: float = 0.0
    differences: list[str] = field(default_factory=list)

    def add(self, other: Report) -> None:
        """Count what another report counts too."""
        for name in ("cases", "answers", "ties", "engines", "seconds", "differences"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def __str__(self) -> str:
        return (
            f"{self.cases} combinations, {self.answers} answers on {self.engines} engines in {self.seconds:.0f} s: "
            f"{len(self.differences)} differ, {self.ties} after a tie"
        )


class Runner:
    """Cases on one model. Holds one engine; the next case with the same options is asked of it too."""

    def __init__(self, model: TinyModel, report: Report) -> None:
        self.model = model
        self.report = report
        self._engine: Engine | None = None
        self._key: tuple[str, Mapping[str, Any]] | None = None
        self._history: list[Case] = []

    def run(self, cases: Iterable[Case], until: float = float("inf")) -> None:
        """Run cases until a time of `time.monotonic`; what differs goes into the report."""
        began = time.monotonic()
        for case in cases:
            if time.monotonic() > until:
                break
            self.report.cases += 1
            wrong = self.wrong(case)
            if wrong:
                # Nothing is known of the engine now.
                self.close()
                self.report.differences.append(self._explain(case, wrong))
        self.close()
        self.report.seconds += time.monotonic() - began

    def wrong(self, case: Case) -> list[str]:
        """Return what is wrong with the answers, or with what the case was to show."""
        try:
            engine = self._engine_for(case)
            self._history.append(case)
            return self._wrong(engine, case)
        except Exception as error:  # noqa: BLE001 - whatever a combination breaks is a finding
            self.close()
            return [f"{type(error).__name__}: {error}"]

    def close(self) -> None:
        """End the engine."""
        engine, self._engine = self._engine, None
        if engine is not None:
            with contextlib.suppress(OctavoError):
                engine.close()

    def _wrong(self, engine: Engine, case: Case) -> list[str]:
        jobs, scenario = make_jobs(case, self.model), case.scenario
        engine.reset()
        before = engine.stats()
        if scenario.warm:
            engine.run([dataclasses.replace(job, params=WARMING) for job in jobs], scenario)
        answers = list(zip(jobs, engine.run(jobs, scenario), strict=True))
        compared = [(job, answer) for job, answer in answers if job.abort_after is None and answer is not None]
        assert len(compared) == scenario.batch, f"{len(compared)} of {scenario.batch} requests were answered"
        wrong: list[str] = []
        for job, answer in compared:
            found, ties = complaints(job, answer, self.model)
            wrong += found
            self.report.ties += ties
            self.report.answers += len(answer.choices)
        after = engine.stats()
        if after.used_pages or after.pending_pages or after.used_slots:
            wrong.append(f"pages or slots did not come back: {after}")
        happened = Happened(
            scenario=scenario,
            preemptions=after.num_preemptions - before.num_preemptions,
            cached=sum(answer.cached for _, answer in compared),
            tokens=sum(len(choice.ids) for _, answer in compared for choice in answer.choices),
            pieces=sum(answer.pieces for _, answer in compared),
            cut=sum(answer is None for _, answer in answers),
            scored=all(answer.prompt_logprobs is not None for _, answer in compared),
        )
        wrong += [f"{name} did not show: {happened}" for name, value in case.chosen if not value.proof(happened)]
        return wrong

    def _engine_for(self, case: Case) -> Engine:
        options: dict[str, Any] = {
            "model": str(self.model.path),
            "dtype": "float32",
            "max_model_len": MAX_MODEL_LEN,
            **case.engine,
        }
        # Checkpoints of states as close as they may stand: these prompts are short.
        options["mamba_block_size"] = options["block_size"]
        if case.scenario.small_pool:
            options["num_pages"] = self.model.small_pool(options["block_size"])
        place = case.scenario.place
        key = ("service" if place == "http" else place, options)
        if self._engine is None or key != self._key:
            self.close()
            self._history = []
            self._engine, self._key = start_engine(options, place), key
            self.report.engines += 1
        return self._engine

    def _explain(self, case: Case, wrong: list[str]) -> str:
        """Return what is wrong and the shortest command that shows it again, on a fresh engine if that is enough."""
        cases = self._history or [case]
        lone = Runner(self.model, Report())
        if lone.wrong(case):
            cases = [_simplest(case, lone.fresh)]
        lone.close()
        command = " ".join(f"--case '{one}'" for one in cases)
        return "\n  ".join([str(case), *wrong[:5], f"python -m tests.equivalence --model {self.model.name} {command}"])

    def fresh(self, case: Case) -> bool:
        """Return whether a case goes wrong on a new engine."""
        self.close()
        return bool(self.wrong(case))


def _simplest(case: Case, fails: Callable[[Case], bool]) -> Case:
    """Return the case with as many plain values as still fail."""
    for name, row in FEATURES.items():
        simpler = Case({**case.values, name: next(iter(row))}, case.seed)
        if simpler != case and possible(simpler.values) and fails(simpler):
            case = simpler
    return case
