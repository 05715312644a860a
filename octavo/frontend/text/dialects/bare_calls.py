"""Calls in Gemma's way: JSON whose keys have no quotes, and whose texts stand between markers of their own."""

from __future__ import annotations

import json
import re
from typing import Final

from octavo.frontend.text.dialects.family import Calls, Schemas
from octavo.frontend.text.dialects.reader import Reader, Steps, markers

_BARE: Final = re.compile(r"[^\s,:{}\[\]<]*")
_NUMBER: Final = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?|true|false|null")


class BareCalls(Calls, frozen=True, kw_only=True, tag="bare"):
    """`before`, NAME, {key:value,…} behind every marker. quote: stands on both sides of a text."""

    before: str
    quote: str

    def read(self, reader: Reader, schemas: Schemas, *, marked: bool) -> Steps[bool]:
        """Read one call."""
        yield from reader.accept(*self.begin)
        yield from reader.accept(self.before)
        name = yield from reader.word()
        if not name or (yield from reader.solid()) != "{":
            return False
        reader.begin_call(name)
        if not (yield from self._value(reader)):
            yield from reader.rest_of_call()
        reader.end_call()
        return True

    def _value(self, reader: Reader) -> Steps[bool]:
        """Give a call its arguments as JSON; whether they are whole."""
        depth = 0
        while character := (yield from reader.solid()):
            if (yield from reader.accept(self.quote)):
                reader.arguments('"')
                quoted = yield from reader.until(
                    markers(self.quote), lambda piece: reader.arguments(json.dumps(piece, ensure_ascii=False)[1:-1])
                )
                if not quoted:
                    return False
                reader.arguments('"')
            elif character in ",:{}[]":
                reader.at += 1
                reader.arguments({",": ", ", ":": ": "}.get(character, character))
                depth += (character in "{[") - (character in "}]")
                if not depth:
                    return True
            else:
                word = yield from reader.run(_BARE)
                if not word:
                    return False
                key = (yield from reader.solid()) == ":"
                reader.arguments(word if _NUMBER.fullmatch(word) and not key else json.dumps(word, ensure_ascii=False))
        return False
