"""Calls whose arguments are JSON: in an object with the name, or behind the name."""

from __future__ import annotations

import json
from typing import Final

from octavo.frontend.text.dialects.family import Calls, Schemas
from octavo.frontend.text.dialects.reader import Reader, Steps

_NAMES: Final = ("name", "function", "tool_name")
_ARGUMENTS: Final = ("arguments", "parameters")
_OTHERS: Final = ("type", "id", "tool_call_id")


class JsonCalls(Calls, frozen=True, kw_only=True, tag="json"):
    """`{"name": …, "arguments": {…}}`, one, several, or a list of them.

    arguments: what the model calls them. listed: it writes a list. lead: stands before it.
    """

    arguments: str = "arguments"
    lead: str = ""
    listed: bool = False

    def read(self, reader: Reader, schemas: Schemas, *, marked: bool) -> Steps[bool]:
        """Read objects as long as there are; brackets that models write too much of are passed over."""
        yield from reader.accept(*self.begin)
        return (yield from _objects(reader, marked=marked))


class NamedCalls(Calls, frozen=True, kw_only=True, tag="named"):
    """NAME and its {…} behind every `begin`: `before`, `prefix`, NAME, `between`, {…}, `behind`.

    prefix: of a name that is also the call's id, "functions.f:0". id_begin: stands before an id. Objects with the name in them
    are read as well.
    """

    before: str = ""
    prefix: str = ""
    id_begin: str = ""
    between: str = ""
    behind: str = ""

    def read(self, reader: Reader, schemas: Schemas, *, marked: bool) -> Steps[bool]:
        """Read one call."""
        yield from reader.accept(*self.begin)
        if (yield from reader.solid()) in ("[", "{") and not self.before:
            return (yield from _objects(reader, marked=marked))
        yield from reader.accept(self.before)
        written = yield from reader.word()
        name, own_id = written, ""
        if self.prefix:
            name, own_id = written.removeprefix(self.prefix).partition(":")[0], written
        yield from reader.solid()
        if self.id_begin and (yield from reader.accept(self.id_begin)):
            own_id = yield from reader.word()
        found = yield from reader.accept(self.between.strip())
        if not name or ((yield from reader.solid()) != "{" and not found):
            return False
        reader.begin_call(name, own_id)
        yield from _arguments(reader)
        reader.end_call()
        if self.behind:
            yield from reader.solid()
            yield from reader.accept(self.behind.strip())
        return True


def _objects(reader: Reader, *, marked: bool) -> Steps[bool]:
    num_before = reader.num_calls
    if (yield from reader.solid()) == "[":
        reader.at += 1
    while character := (yield from reader.solid()):
        if character == "{":
            if reader.num_calls > num_before:
                reader.mark()
            if not (yield from _object(reader, marked=marked)):
                break
        elif character in ",;]}" and reader.num_calls > num_before:
            reader.at += 1
        else:
            break
    return reader.num_calls > num_before


def _object(reader: Reader, *, marked: bool) -> Steps[bool]:
    """Read one object; whether it is a call. The arguments may come before the name, and then they wait for it."""
    reader.at += 1
    name, kept, begun = "", "", False
    while key := (yield from _key(reader)):
        if not marked and key not in (*_NAMES, *_ARGUMENTS, *_OTHERS):
            return False
        if key in _ARGUMENTS and name and not begun:
            reader.begin_call(name)
            begun = True
            if not (yield from _arguments(reader)):
                break
            continue
        value, whole = yield from reader.captured()
        if not whole:
            break
        if key in _NAMES and value.startswith('"') and not name:
            name = _loaded(value)
            if not marked and name not in reader.names:
                return False
        elif key in _ARGUMENTS:
            kept = value
    closed = yield from reader.accept("}")
    if not begun:
        if not (name and closed):
            return False
        reader.begin_call(name)
        reader.arguments(_object_text(kept))
    reader.end_call()
    return True


def _key(reader: Reader) -> Steps[str]:
    """Read the next key of an object, with the comma before it and the colon behind it; "" if there is none."""
    if (yield from reader.solid()) == ",":
        reader.at += 1
    if (yield from reader.solid()) != '"':
        return ""
    written, whole = yield from reader.captured()
    if not whole or (yield from reader.solid()) != ":":
        return ""
    reader.at += 1
    yield from reader.solid()
    return _loaded(written)


def _arguments(reader: Reader) -> Steps[bool]:
    """Give a call its arguments as they come; what is no object is looked at when it is whole."""
    if (yield from reader.solid()) in ("{", "["):
        return (yield from reader.call_value())
    written, whole = yield from reader.captured()
    reader.arguments(_object_text(written))
    return whole


def _object_text(written: str) -> str:
    """Return the arguments' JSON text: nothing is an object without keys, and text may be JSON itself."""
    if written.strip() in ("", "null", '""'):
        return "{}"
    inner = _loaded(written) if written.startswith('"') else ""
    return inner if inner.strip().startswith("{") else written


def _loaded(written: str) -> str:
    """Return what a JSON string says, "" if it is none."""
    try:
        value = json.loads(written)
    except ValueError:
        return ""
    return value if isinstance(value, str) else ""
