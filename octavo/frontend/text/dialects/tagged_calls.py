"""Calls in tags: each argument by itself, as text whose type only the tool's schema tells."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from octavo.frontend.text.dialects.family import Calls, Schemas
from octavo.frontend.text.dialects.python_calls import literal
from octavo.frontend.text.dialects.reader import Reader, Steps, markers

_KINDS = {bool: "boolean", int: "integer", float: "number", str: "string", dict: "object", list: "array"}

_MAX_DEPTH = 8


class TaggedCalls(Calls, frozen=True, kw_only=True, tag="tagged"):
    """Names stand between the texts of `function`; then, for each argument, its name between `key` and its value.

    key_text: another end of `key`, which says that the value is text; `key` says then that it is JSON. padded: a value stands
    on lines of its own, whose breaks are not part of it.
    """

    function: tuple[str, str] = ("", "")
    function_end: str = ""
    key: tuple[str, str]
    key_text: str = ""
    value: tuple[str, str]
    padded: bool = False

    def read(self, reader: Reader, schemas: Schemas, *, marked: bool) -> Steps[bool]:
        """Read all calls behind one marker."""
        begin, end = self.function
        num_before = reader.num_calls
        inside = (yield from reader.accept(*self.begin)) == begin
        while inside or not begin or ((yield from reader.solid()) and (yield from reader.accept(begin))):
            yield from reader.solid()
            name = yield from reader.word()
            yield from reader.solid()
            if not name or (end and not (yield from reader.accept(end))):
                break
            reader.begin_call(name)
            whole = yield from self._arguments(reader, schemas.get(name, {}))
            reader.end_call()
            yield from reader.solid()
            yield from reader.accept(self.function_end)
            if not begin or not whole:
                break
            inside = False
        return reader.num_calls > num_before

    def _arguments(self, reader: Reader, schema: Mapping[str, Any]) -> Steps[bool]:
        """Read a call's arguments; whether all of them had an end."""
        known = schema.get("properties")
        properties: Mapping[str, Any] = known if isinstance(known, Mapping) else {}
        ends = markers(*filter(None, (self.key[1], self.key_text)))
        before = "{"
        while (yield from reader.solid()) and (yield from reader.accept(self.key[0])):
            pieces: list[str] = []
            found = yield from reader.until(ends, pieces.append)
            key = "".join(pieces).strip()
            reader.arguments(before + json.dumps(key, ensure_ascii=False) + ": ")
            before = ", "
            types = types_of(properties.get(key))
            if self.key_text:
                types = {"string"} if found == self.key_text else types - {"string"}
            if self.value[0]:
                yield from reader.solid()
                yield from reader.accept(self.value[0])
            if not found or not (yield from self._value(reader, types)):
                return False
        reader.arguments("{}" if before == "{" else "}")
        return True

    def _value(self, reader: Reader, types: set[str]) -> Steps[bool]:
        """Read a value: text goes out as it comes, anything else when it is whole. Whether it has its end."""
        pieces: list[str] = []
        text, end = types == {"string"}, self.value[1]
        if self.padded:
            yield from reader.accept("\n")
        reader.arguments('"' if text else "")
        emit = (lambda piece: reader.arguments(_quoted(piece)[1:-1])) if text else pieces.append
        found = yield from reader.until(markers(f"\n{end}", end) if self.padded else markers(end), emit)
        reader.arguments(('"' if found else "") if text else _coerced("".join(pieces), types))
        return bool(found)


def _quoted(text: Any) -> str:
    return json.dumps(text, ensure_ascii=False, allow_nan=False)


def types_of(schema: Any, depth: int = 0) -> set[str]:
    """Return the JSON types that a schema names; none if it does not say. Nobody has checked that it is a schema."""
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return set()
    named = schema.get("type")
    found = {one for one in (named if isinstance(named, list) else [named]) if isinstance(one, str)}
    choices, more, values = (schema.get(word) for word in ("anyOf", "oneOf", "enum"))
    for choice in (*(choices if isinstance(choices, list) else ()), *(more if isinstance(more, list) else ())):
        found |= types_of(choice, depth + 1)
    return found or {_KINDS.get(type(value), "null") for value in (values if isinstance(values, list) else ())}


def _coerced(text: str, types: set[str]) -> str:
    """Return the JSON text of a value of one of these types (none: any); what cannot be read so is a string."""
    written = text.strip()
    try:
        value = json.loads(written)
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        try:
            value = literal(written)
            written = _quoted(value)
        except ValueError:
            return _quoted(text)
    kind = _KINDS.get(type(value), "null")
    wanted = kind in types or (kind == "integer" and "number" in types)
    return _quoted(text) if "string" in types and not wanted else written
