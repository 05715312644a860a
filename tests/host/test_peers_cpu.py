"""The table of peers on a CPU: who runs when, with what, which seconds count, and the ratios, by engines that only pretend."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest

from benchmarks import peers_cpu

# Keeps its arguments, and takes the next of its seconds each time it is started.
FAKE = """#!{python}
import json, pathlib, sys
log, name, seconds = pathlib.Path({log!r}), {name!r}, {seconds!r}
before = log.read_text().splitlines() if log.exists() else []
mine = seconds[sum(json.loads(line)[0] == name for line in before)]
log.write_text("\\n".join([*before, json.dumps([name, sys.argv[1:]])]))
loads, reps = (sys.argv[sys.argv.index(flag) + 1] for flag in ("--loads", "--reps"))
print("noise")
print("RESULT", json.dumps(dict(what="startup", init_s=0.1)))
for load in loads.split(","):
    for rep in range(int(reps)):
        print("RESULT", json.dumps(dict(what=load, rep=rep, s=mine if rep == int(reps) - 1 else 99.0)))
print("RESULT", json.dumps(dict(what="memory", rank=0)))
"""


def fake(folder: Path, name: str, seconds: list[float]) -> str:
    file = folder / name
    file.write_text(FAKE.format(python=sys.executable, log=str(folder / "log"), name=name, seconds=seconds))
    file.chmod(0o755)
    return str(file)


def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> list[list[str]]:
    history = ["--history", str(tmp_path / "history.jsonl")]
    monkeypatch.setattr(sys, "argv", ["peers_cpu", "m.gguf", "--peers", "/peers", *history, *more])
    peers_cpu.main()
    log = tmp_path / "log"
    return [[name, *given] for name, given in map(json.loads, log.read_text().splitlines())] if log.exists() else []


def test_engines_take_turns_and_the_last_of_each_process_counts(tmp_path, monkeypatch, capsys):
    octavo, llamacpp = fake(tmp_path, "octavo", [2.0, 1.0, 4.0]), fake(tmp_path, "llamacpp", [6.0, 5.0, 4.0])
    monkeypatch.setattr(sys, "executable", octavo)
    started = run(
        tmp_path,
        monkeypatch,
        *("--llamacpp-python", llamacpp, "--loads", "single", "--rounds", "3", "--threads", "2", "--label", "x"),
    )
    assert [name for name, *_ in started] == ["octavo", "llamacpp"] * 3
    assert started[1][1:] == [
        "/peers/bench_llamacpp.py",
        "m.gguf",
        "--loads",
        "single",
        "--reps",
        "2",
        "--scale",
        "cpu",
        "--threads",
        "2",
    ]
    ours = started[0]
    assert ours[1:4] == ["-m", "benchmarks.offline.loads", "m.gguf"]
    assert json.loads(ours[ours.index("--options") + 1]) == {"max_model_len": 4352, "load_format": "auto"}
    printed = capsys.readouterr().out.splitlines()
    # Medians 2 and 5; the pairs' own ratios are 3, 5 and 1.
    assert "| single | 2.000 (1.000–4.000) | 5.000 (4.000–6.000) | 2.50 |" in printed
    assert "single: llamacpp / octavo, 3 pairs: 3.00 (1.00–5.00); of the lowest of each: 4.00" in printed


def test_rounds_of_one_label_and_model_are_one_measurement(tmp_path, monkeypatch, capsys):
    line = {"at": 1, "commit": "c", "load": "small"}
    kept = [
        {
            **line,
            "others": others,
            "label": label,
            "model": model,
            "figures": {"octavo": {"small": [9.0, ours]}, "vllm": {"small": [9.0, theirs]}},
        }
        for label, model, ours, theirs, others in [
            ("a", "m.gguf", 1.0, 2.0, 0.1),
            ("b", "m.gguf", 50.0, 1.0, 0.0),
            ("a", "other", 70.0, 1.0, 0.0),
            ("a", "m.gguf", 3.0, 4.0, 0.5),
        ]
    ]
    (tmp_path / "history.jsonl").write_text("".join(json.dumps(each) + "\n" for each in kept))
    assert run(tmp_path, monkeypatch, "--label", "a", "--rounds", "0") == []
    printed = capsys.readouterr().out
    assert "| small | 2.000 (1.000–3.000) | 3.000 (2.000–4.000) | 1.50 |" in printed
    assert "2 pairs: 1.67 (1.33–2.00)" in printed
    run(tmp_path, monkeypatch, "--label", "a", "--rounds", "0", "--most-others", "0.4")
    assert "1 pairs: 2.00 (2.00–2.00)" in capsys.readouterr().out
    run(tmp_path, monkeypatch, "--label", "unknown", "--rounds", "0")
    assert "nothing measured" in capsys.readouterr().out


def test_each_peer_gets_its_own_flags(tmp_path, monkeypatch, capsys):
    vllm, own = fake(tmp_path, "vllm", [1.0]), fake(tmp_path, "transformers", [1.0])
    monkeypatch.setattr(sys, "executable", fake(tmp_path, "octavo", [1.0]))
    flags = ["--vllm-python", vllm, "--transformers-python", own, "--dummy", "--loads", "mix+burst", "--rounds", "1"]
    started = run(tmp_path, monkeypatch, *flags, "--inner", "1", "--octavo-options", '{"dtype": "bfloat16"}')
    printed = capsys.readouterr().out
    assert "| mix | 1.000 (1.000–1.000) |" in printed
    assert "| burst | 1.000 (1.000–1.000) |" in printed
    by_name = {name: given for name, *given in started}
    assert all(given[given.index("--loads") + 1] == "mix,burst" for given in by_name.values())
    assert by_name["vllm"][-4:] == ["--load-format", "dummy", "--max-model-len", "4352"]
    assert by_name["transformers"][0].endswith("benchmarks/offline/bench_transformers.py")
    assert by_name["transformers"][-1] == "--dummy"
    assert "/peers" in by_name["transformers"]
    options = json.loads(by_name["octavo"][by_name["octavo"].index("--options") + 1])
    assert options == {"max_model_len": 4352, "load_format": "dummy", "dtype": "bfloat16"}


def test_an_engine_that_fails_stops_the_measurement(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "executable", fake(tmp_path, "octavo", []))
    with pytest.raises(peers_cpu.subprocess.CalledProcessError):
        run(tmp_path, monkeypatch, "--loads", "mix", "--rounds", "1")
    capsys.readouterr()
    assert not (tmp_path / "history.jsonl").exists()


def test_what_others_take_of_the_machine_is_kept(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "executable", fake(tmp_path, "octavo", [1.0]))
    busy = iter([10.0, 13.0])
    clock = iter([0.0, 0.0, 1.5, 2.0])
    monkeypatch.setattr(peers_cpu, "seconds_of_others", lambda: next(busy))
    monkeypatch.setattr(peers_cpu.time, "perf_counter", lambda: next(clock))
    run(tmp_path, monkeypatch, "--loads", "mix", "--rounds", "1")
    capsys.readouterr()
    line = json.loads((tmp_path / "history.jsonl").read_text())
    assert (line["load"], line["others"]) == ("mix", 1.5)


def test_the_processor_time_of_our_own_processes_is_nobody_elses():
    before = peers_cpu.seconds_of_others()
    spin = "import time; end = time.process_time() + 0.5\nwhile time.process_time() < end: pass"
    began = time.perf_counter()
    peers_cpu.subprocess.run([sys.executable, "-c", spin], check=True)
    taken = time.perf_counter() - began
    # Others cannot have had more than the cores left, and what we took is not among it.
    assert -0.1 <= peers_cpu.seconds_of_others() - before <= taken * (os.cpu_count() or 1) - 0.4
