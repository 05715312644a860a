"""The size gate: prints lines per room against its ceiling and the change since the last commit; fails beyond a limit.

    python tools/budget.py [root]

Ceilings sum to more than the total: rooms trade. Raise one only by a note under `docs/design/`.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

TOTAL = 35_000
CEILINGS = {
    "octavo": 100,
    "llm": 500,
    "launch": 500,
    "cli": 2_500,
    "frontend": 9_200,
    "worker": 4_500,
    "engine": 3_600,
    "models": 3_300,
    "connectors": 1_000,
    "drafters": 600,
    "nn": 4_000,
    "ops": 5_500,
    "device": 1_000,
    "constrain": 500,
    "checkpoint": 2_000,
    "observe": 500,
    "protocol": 1_050,
    "config": 1_000,
    "base": 700,
}
FILE_LINES = 500
FUNCTION_LINES = 60
KERNEL_LINES = 150
PARAMETERS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Lines of each room now and in the last commit (empty without git), and every limit that is exceeded."""

    now: dict[str, int]
    before: dict[str, int]
    faults: tuple[str, ...]


def room_of(path: PurePosixPath) -> str:
    """Return the room of `octavo/<room>/…` or `octavo/<room>.py`; the package's own file is the room `octavo`."""
    name = PurePosixPath(path.parts[1]).stem
    return "octavo" if name == "__init__" else name


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield every function of a file, nested ones too."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node


def num_parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Count parameters, `*args` and `**kwargs` too, without `self` and `cls`."""
    spec = node.args
    names = [a.arg for a in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs)]
    names += [a.arg for a in (spec.vararg, spec.kwarg) if a is not None]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def check_file(path: PurePosixPath, source: str) -> Iterator[str]:
    """Yield what is too long or takes too many parameters in one file."""
    num_lines = source.count("\n")
    if num_lines > FILE_LINES:
        yield f"{path}: {num_lines} lines, at most {FILE_LINES}"
    kernels = room_of(path) == "ops"
    longest = KERNEL_LINES if kernels else FUNCTION_LINES
    for node in functions(ast.parse(source)):
        assert node.end_lineno is not None
        span = node.end_lineno - node.lineno + 1
        if span > longest:
            yield f"{path}:{node.lineno}: {node.name} has {span} lines, at most {longest}"
        if not kernels and num_parameters(node) > PARAMETERS:
            yield f"{path}:{node.lineno}: {node.name} takes {num_parameters(node)} parameters, at most {PARAMETERS}"


def lines_at_head(root: Path) -> dict[str, int]:
    """Return lines per room in the last commit; empty outside a git checkout."""
    command = ["git", "-C", str(root), "grep", "-c", "", "HEAD", "--", "octavo/*.py"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return {}
    counts = Counter[str]()
    for line in answer.stdout.splitlines():
        _, path, count = line.rsplit(":", 2)
        counts[room_of(PurePosixPath(path))] += int(count)
    return dict(counts)


def measure(root: Path) -> Report:
    """Measure the package under `root`."""
    now, faults = Counter[str](), list[str]()
    for file in sorted((root / "octavo").rglob("*.py")):
        path = PurePosixPath(file.relative_to(root).as_posix())
        source = file.read_text(encoding="utf-8")
        now[room_of(path)] += source.count("\n")
        faults += check_file(path, source)
    for room, count in now.items():
        if room not in CEILINGS:
            faults.append(f"{room}: a new room; give it a ceiling in tools/budget.py")
        elif count > CEILINGS[room]:
            faults.append(f"{room}: {count} lines, at most {CEILINGS[room]}")
    if now.total() > TOTAL:
        faults.append(f"octavo: {now.total()} lines in all, at most {TOTAL}")
    return Report(now=dict(now), before=lines_at_head(root), faults=tuple(faults))


def table(report: Report) -> Iterator[str]:
    """Yield the lines of the printed table."""
    yield f"{'room':<12}{'lines':>8}{'ceiling':>9}{'change':>8}"
    rooms = [room for room in CEILINGS if room in report.now or room in report.before]
    for room in [*rooms, *(room for room in report.now if room not in CEILINGS)]:
        count, change = report.now.get(room, 0), report.now.get(room, 0) - report.before.get(room, 0)
        yield f"{room:<12}{count:>8}{CEILINGS.get(room, 0):>9}{change:>+8}"
    total = sum(report.now.values())
    yield f"{'total':<12}{total:>8}{TOTAL:>9}{total - sum(report.before.values()):>+8}"


def main(arguments: list[str]) -> int:
    """Print the table and the faults; return 1 if there are any."""
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parent.parent
    report = measure(root)
    print("\n".join(table(report)))
    print("\n".join(report.faults), file=sys.stderr, end="\n" if report.faults else "")
    return 1 if report.faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
