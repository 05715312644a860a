"""The size gate bites, and the tree is inside it."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from tools import budget

ROOT = Path(__file__).resolve().parents[2]


def _faults(path: str, source: str) -> list[str]:
    return list(budget.check_file(PurePosixPath(path), source))


def test_long_function_is_named_with_its_length() -> None:
    body = "def stretch(a):\n" + "    a += 1\n" * 60
    assert _faults("octavo/nn/linear.py", body) == ["octavo/nn/linear.py:1: stretch has 61 lines, at most 60"]
    assert _faults("octavo/ops/norm/cpu.py", body) == []
    assert len(_faults("octavo/ops/norm/cpu.py", "def f(a):\n" + "    a += 1\n" * 150)) == 1


def test_parameters_count_all_kinds_but_not_self() -> None:
    source = "class C:\n    def f(self, a, b, c, d, /, e, *f, g, h): ...\n"
    assert _faults("octavo/worker/runner.py", source) == []
    nine = source.replace("*f", "*f, i")
    assert _faults("octavo/worker/runner.py", nine) == ["octavo/worker/runner.py:2: f takes 9 parameters, at most 8"]
    assert _faults("octavo/ops/attention/triton.py", nine) == []


def test_long_file() -> None:
    assert _faults("octavo/llm.py", "\n" * 500) == []
    assert _faults("octavo/llm.py", "\n" * 501) == ["octavo/llm.py: 501 lines, at most 500"]


def test_rooms_totals_and_strangers(tmp_path: Path) -> None:
    package = tmp_path / "octavo"
    (package / "extra").mkdir(parents=True)
    (package / "extra" / "a.py").write_text("x = 1\n" * 3)
    (package / "device").mkdir()
    for part in range(3):
        (package / "device" / f"part{part}.py").write_text("x = 1\n" * 400)
    (package / "llm.py").write_text("x = 1\n" * 10)
    report = budget.measure(tmp_path)
    assert report.now == {"extra": 3, "device": 1200, "llm": 10}
    assert set(report.faults) == {
        "device: 1200 lines, at most 1000",
        "extra: a new room; give it a ceiling in tools/budget.py",
    }
    assert list(budget.table(report))[-1].split() == ["total", "1213", "35000", "+1213"]


def test_the_tree_is_inside_its_budget() -> None:
    assert budget.measure(ROOT).faults == ()
