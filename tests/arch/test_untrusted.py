"""What comes from outside is data: nothing unpickles it, evaluates it, hands it to a shell, or goes where it says."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.arch.sources import identifiers, package

# Readers that can be made to run code.
_PICKLING = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "multiprocessing"}
_RUNNING = {
    *("eval", "exec", "popen", "unsafe_load", "full_load", "send_pyobj", "recv_pyobj", "allow_pickle"),
    *("broadcast_object_list", "all_gather_object", "send_object_list", "recv_object_list"),
}
# Who asks anybody on the net: commands that are clients, and the hub for a model that is given by its hub name.
_ASKING = {"httpx", "requests", "aiohttp", "urllib3", "urllib.request", "http.client", "huggingface_hub"}
_MAY_ASK = ("octavo/cli/", "octavo/checkpoint/hub.py")


def imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield every imported module, and what is taken from it, "" for itself; also from within functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((node.module, alias.name) for alias in node.names)


def calls_of(tree: ast.Module, attribute: str) -> Iterator[dict[str, ast.expr]]:
    """Yield the keyword arguments of every call of an attribute of this name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == attribute:
            yield {str(keyword.arg): keyword.value for keyword in node.keywords}


def test_nothing_is_unpickled() -> None:
    found = {
        (file, module, name)
        for file, tree in package().items()
        for module, name in imports(tree)
        if module.split(".")[0] in _PICKLING
    }
    # The name of an error alone.
    assert found == {("octavo/worker/loader/pt_weights.py", "pickle", "UnpicklingError")}
    loads = [
        keywords for file in package().values() for keywords in calls_of(file, "load") if "map_location" in keywords
    ]
    assert len(loads) == 2
    assert all(isinstance(one["weights_only"], ast.Constant) and one["weights_only"].value is True for one in loads)


def test_nothing_is_run_that_came_as_text() -> None:
    found = [
        (file, line, name) for file, tree in package().items() for line, name in identifiers(tree) if name in _RUNNING
    ]
    assert found == []
    shells = [
        file
        for file, tree in package().items()
        for name in ("run", "Popen")
        for one in calls_of(tree, name)
        if "shell" in one
    ]
    assert shells == []
    for file, tree in package().items():
        assert not any(
            isinstance(node, ast.Attribute) and ast.unparse(node) == "os.system" for node in ast.walk(tree)
        ), file


def test_a_server_asks_nobody() -> None:
    asking = {
        file
        for file, tree in package().items()
        for module, name in imports(tree)
        if {module, f"{module}.{name}", module.split(".")[0]} & _ASKING
    }
    assert {file for file in asking if not file.startswith(_MAY_ASK)} == set()
    assert "octavo/checkpoint/hub.py" in asking
