"""The house rules that a syntax tree can show."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from tests.arch.sources import calls, identifiers, package, texts

# Where fields of our own records are read by a name that is data.
DYNAMIC_ACCESS = {
    "octavo/config/engine.py",
    "octavo/config/fields.py",
    "octavo/config/flags.py",
    "octavo/device/recording.py",
    "octavo/frontend/server/routes/chat.py",
    "octavo/frontend/server/routes/openai_schema.py",
    "octavo/ops/compile_ahead.py",
    "octavo/protocol/sampling.py",
    "octavo/protocol/structured.py",
}
PROBES = "octavo/checkpoint/hf_config.py"
VAGUE = {"utils", "util", "helpers", "helper", "manager", "misc", "common", "v2"}
IMPURE = re.compile(r"(^|_)(rank|ranks|tp|cuda|fp8)(_|$)|world_size|all_reduce|quant")


def _reads_module(call: ast.Call) -> bool:
    """Whether it is `getattr(torch, dtype)` or `getattr(importlib.import_module(path), name)`: nothing is guessed there."""
    return ast.unparse(call.args[0]) == "torch" or ast.unparse(call.args[0]).startswith("importlib.import_module(")


def _undocumented(body: list[ast.stmt], prefix: str = "") -> Iterator[str]:
    for node in body:
        if not isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) or node.name.startswith("_"):
            continue
        written_by = [ast.unparse(decorator) for decorator in node.decorator_list]
        if "overload" in written_by or any(name.endswith(".setter") for name in written_by):
            continue
        if not ast.get_docstring(node):
            yield prefix + node.name
        if isinstance(node, ast.ClassDef):
            yield from _undocumented(node.body, f"{node.name}.")


def test_undocumented_names_are_found() -> None:
    source = "class A:\n    '''x'''\n    def f(self): ...\n    def _g(self): ...\ndef h(): ...\nasync def i():\n    '''y'''\n"
    assert list(_undocumented(ast.parse(source).body)) == ["A.f", "h"]


def test_every_public_name_has_a_docstring() -> None:
    missing = [f"{path}: {name}" for path, tree in package().items() for name in _undocumented(tree.body)]
    assert missing == []


def test_every_file_says_what_it_is_for() -> None:
    silent = [
        path
        for path, text in texts().items()
        if path.endswith(".py") and text.strip() and not ast.get_docstring(ast.parse(text))
    ]
    assert silent == []


def test_no_file_has_a_vague_name() -> None:
    vague = [
        path
        for path in texts()
        if path.endswith(".py")
        and VAGUE.intersection(re.split(r"[_/]", PurePosixPath(path).with_suffix("").as_posix()))
    ]
    assert vague == []


def test_nothing_is_probed_outside_the_config_reader() -> None:
    probes = [
        f"{path}:{call.lineno}"
        for path, tree in package().items()
        if path != PROBES
        for call in (*calls(tree, "hasattr"), *(c for c in calls(tree, "getattr") if len(c.args) == 3))
    ]
    assert probes == []


def test_fields_are_read_by_name_only_where_listed() -> None:
    places = {
        path for path, tree in package().items() if not all(_reads_module(call) for call in calls(tree, "getattr"))
    }
    assert places - DYNAMIC_ACCESS - {PROBES} == set()


def test_only_one_file_reads_the_environment() -> None:
    readers = {
        path
        for path, tree in package().items()
        for _, name in identifiers(tree)
        if name in ("environ", "getenv", "environb", "putenv")
    }
    assert readers == {"octavo/base/env.py"}


def test_ranks_talk_in_one_place() -> None:
    talkers = {path for path, text in texts().items() if path.startswith("octavo/") and "torch.distributed" in text}
    assert talkers == {"octavo/nn/parallel/gloo.py"}


def test_no_state_lives_in_a_module() -> None:
    found = [
        f"{path}:{node.lineno}"
        for path, tree in package().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Global)
    ]
    assert found == []


def test_impure_words_are_recognized() -> None:
    words = ["rank", "tp_size", "world_size", "is_cuda", "quantized", "fp8", "all_reduce", "num_ranks"]
    assert [word for word in words if not IMPURE.search(word)] == []
    assert [word for word in ["frank", "http", "output", "step", "ranking"] if IMPURE.search(word)] == []


def test_model_files_know_nothing_of_ranks_formats_and_hardware() -> None:
    impure = [
        f"{path}:{line}: {name}"
        for path, tree in package().items()
        if path.startswith("octavo/models/")
        for line, name in identifiers(tree)
        if IMPURE.search(name)
    ]
    assert impure == []


def test_an_architecture_is_named_only_where_it_lives() -> None:
    """In its own file, the checkpoint readers (its row is there) and tests: nothing else may depend on which model it is."""
    rows = [(name, row["module"]) for name, row in json.loads(texts()["octavo/checkpoint/architectures.json"]).items()]
    assert {"llama", "qwen3"} <= {stem for _, stem in rows}
    own = {name: f"octavo/models/{stem}.py" for row in rows for stem in [row[1]] for name in row}
    found = [
        f"{path}: {name}"
        for path, tree in package().items()
        # GGUF files name vocabularies after the models that had them first.
        if not path.startswith(("octavo/checkpoint/", "octavo/frontend/text/"))
        for name in _names_and_strings(tree)
        if name in own and own[name] != path
    ]
    assert found == []


def _names_and_strings(tree: ast.AST) -> Iterator[str]:
    yield from (name for _, name in identifiers(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_every_to_do_names_an_issue_or_a_version() -> None:
    mark = re.compile(r"#\s*(TODO|FIXME|XXX)\b(?!.*(#\d+|\d+\.\d+))")
    loose = [
        f"{path}:{number}"
        for path, text in texts().items()
        if path.endswith(".py")
        for number, line in enumerate(text.splitlines(), 1)
        if mark.search(line)
    ]
    assert loose == []
