"""Calls as Python writes them: `[f(a=1), g(b="x")]`. Each goes out when it is whole, for only then it can be read."""

from __future__ import annotations

import ast
import json
import re
from typing import Any, Final

from octavo.frontend.text.dialects.family import Calls, Schemas
from octavo.frontend.text.dialects.reader import Reader, Steps

# One step through an argument list: a whole string, what is neither quote nor bracket, a bracket.
_STEP: Final = re.compile(r""" "(?:[^"\\]|\\.)*" | '(?:[^'\\]|\\.)*' | [^'"()\[\]{}]+ | [()\[\]{}] """, re.X | re.S)
_MAX_CHARACTERS: Final = 2**16
_WORDS: Final = {"true": True, "false": False, "null": None}


class PythonCalls(Calls, frozen=True, kw_only=True, tag="python"):
    """In a list, or on lines of their own."""

    def read(self, reader: Reader, schemas: Schemas, *, marked: bool) -> Steps[bool]:
        """Read calls as long as there are."""
        num_before = reader.num_calls
        yield from reader.accept(*self.begin)
        if (yield from reader.solid()) == "[":
            reader.at += 1
        while True:
            while (yield from reader.solid()) in (",", "]") and reader.num_calls > num_before:
                reader.at += 1
            if reader.num_calls > num_before:
                reader.mark()
            name = yield from reader.word()
            known = name and (marked or name in reader.names)
            written = (yield from _bracketed(reader)) if known and (yield from reader.accept("(")) else ""
            try:
                arguments = json.dumps(_arguments(f"f({written}"), ensure_ascii=False, allow_nan=False)
            except ValueError:
                reader.fail()
                return reader.num_calls > num_before
            reader.begin_call(name)
            reader.arguments(arguments)
            reader.end_call()


def _bracketed(reader: Reader) -> Steps[str]:
    """Read on behind a bracket up to its end, and return it; strings may hold brackets."""
    text, depth = "", 1
    while depth and len(text) < _MAX_CHARACTERS:
        found = _STEP.match(reader.text, reader.at)
        step = found[0] if found else ""
        if not step:
            if reader.ended or len(reader.text) - reader.at > _MAX_CHARACTERS:
                break
            yield
        text += step
        reader.at += len(step)
        depth += bool(step) * ((step in "([{") - (step in ")]}"))
    return text


def _arguments(source: str) -> dict[str, Any]:
    """Return the arguments of a call by name; raises ValueError if it is none, or has others."""
    call = _parsed(source)
    if not isinstance(call, ast.Call) or call.args:
        raise ValueError("no call with named arguments only")
    return {_named(one.arg): _value(one.value) for one in call.keywords}


def literal(source: str) -> Any:
    """Return the value that a Python literal stands for, as far as JSON has it; raises ValueError for anything else."""
    return _value(_parsed(source))


def _parsed(source: str) -> ast.expr:
    try:
        return ast.parse(source[:_MAX_CHARACTERS], mode="eval").body
    except (SyntaxError, MemoryError, RecursionError) as error:
        raise ValueError("no Python") from error


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=str() | int() | float() | None as value):
            return value
        case ast.Name(id=name) if name in _WORDS:
            return _WORDS[name]
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_value(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            names = [_named(key.value if isinstance(key, ast.Constant) else None) for key in keys]
            return dict(zip(names, map(_value, values), strict=True))
        case _:
            raise ValueError("no literal")


def _named(name: Any) -> str:
    if not isinstance(name, str):
        raise ValueError("no name")
    return name
