"""The sources of the tree, parsed once for the tests of its shape."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TORCH_FREE = ("base", "config", "protocol", "checkpoint", "observe", "frontend", "engine")


@functools.cache
def package() -> dict[str, ast.Module]:
    """Every file of the package: path from the root -> syntax tree."""
    files = sorted((ROOT / "octavo").rglob("*.py"))
    return {file.relative_to(ROOT).as_posix(): ast.parse(file.read_text(encoding="utf-8")) for file in files}


@functools.cache
def texts() -> dict[str, str]:
    """Every text file that belongs to the repository: path from the root -> content."""
    folders = ("octavo", "tests", "tools", "benchmarks", "docs", ".ci", ".github", "examples")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*")]
    files += [file for kind in ("md", "toml", "yml") for file in ROOT.glob(f"*.{kind}")]
    files += [ROOT / "Makefile", ROOT / "LICENSE", ROOT / ".pre-commit-config.yaml"]
    kept = [file for file in sorted(files) if file.is_file() and "__pycache__" not in file.parts]
    return {
        file.relative_to(ROOT).as_posix(): file.read_bytes().decode("utf-8", errors="replace")
        for file in kept
        if file.suffix not in (".png", ".gguf", ".safetensors", ".whl")
    }


def identifiers(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, name) of every name that a file uses, binds, imports or passes by keyword."""
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                yield line, name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield line, name
            case ast.keyword(arg=str(name)):
                yield line, name
            case ast.alias(name=name, asname=other):
                yield line, name
                if other:
                    yield line, other
            case _:
                pass


def calls(tree: ast.AST, name: str) -> Iterator[ast.Call]:
    """Yield every call of the plain name `name`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name:
            yield node
