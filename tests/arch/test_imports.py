"""What an import costs and what it drags in."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import octavo
from tests.arch.sources import ROOT, TORCH_FREE

PUBLIC = [
    "LLM",
    "AsyncLLM",
    "BeamSearchParams",
    "CompletionOutput",
    "EngineConfig",
    "Logprob",
    "OctavoError",
    "RequestOutput",
    "RequestOutputKind",
    "PoolingParams",
    "PoolingRequestOutput",
    "EmbeddingRequestOutput",
    "SamplingParams",
    "StructuredOutputsParams",
    "TextPrompt",
    "TokensPrompt",
]
HEAVY = ("torch", "zmq", "starlette", "uvicorn", "transformers", "tokenizers", "numpy")
LIST_HEAVY = f"import sys; print([name for name in {HEAVY} if name in sys.modules])"
HELP = """
import sys
sys.argv = ["octavo", "--help"]
from octavo.cli.main import main
try:
    code = main()
except SystemExit as stop:
    code = stop.code
assert not code, code
print(end="\\n")
"""
# Importing a name that maps to None raises ImportError: these rooms have to work on a machine without torch.
IMPORT_ROOMS = """
import importlib, pkgutil, sys
sys.modules.update(torch=None, triton=None, transformers=None)
for room in sys.argv[1:]:
    package = importlib.import_module(f"octavo.{room}")
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
        print(module.name)
"""


def _python(source: str, *arguments: str) -> str:
    command = [sys.executable, "-c", source, *arguments]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def _best_seconds(command: Sequence[str], enough: float) -> float:
    """The shortest of up to 12 runs, for other work on the machine only adds; stops at the first below `enough`."""
    best = float("inf")
    for _ in range(12):
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        best = min(best, time.perf_counter() - start)
        if best < enough:
            break
    return best


def test_the_public_list() -> None:
    assert sorted(octavo.__all__) == sorted(PUBLIC)
    assert [name for name in PUBLIC if getattr(octavo, name).__name__ != name] == []


def test_unknown_public_name() -> None:
    answer = subprocess.run(
        [sys.executable, "-c", "from octavo import Nothing"], capture_output=True, text=True, check=False
    )
    assert "ImportError: cannot import name 'Nothing'" in answer.stderr


def test_import_is_quick_and_brings_nothing_heavy() -> None:
    assert _python("import octavo; " + LIST_HEAVY).strip() == "[]"
    bare = _best_seconds([sys.executable, "-c", "pass"], 0.0)
    assert _best_seconds([sys.executable, "-c", "import octavo"], bare + 0.15) - bare < 0.15


def test_help_is_quick_and_brings_nothing_heavy() -> None:
    assert _python(HELP + LIST_HEAVY).splitlines()[-1] == "[]"
    command = Path(sys.executable).with_name("octavo")
    assert _best_seconds([str(command), "--help"], 0.4) < 0.4


def test_the_host_side_runs_without_torch() -> None:
    imported = _python(IMPORT_ROOMS, *TORCH_FREE).split()
    assert {name.split(".")[1] for name in imported} >= {
        "base",
        "config",
        "protocol",
        "checkpoint",
        "engine",
        "frontend",
    }
