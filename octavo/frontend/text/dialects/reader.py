"""Reads a text that arrives in pieces as if it were there: grammars are generators that wait in the middle of a word.

A grammar asks for what it needs with `yield from`, and is stopped until enough of the text has come. What it decides depends
on the text alone, never on how that was cut, so every cut gives the same events. What it has found goes out at once; only what
may still become a marker waits.
"""

from __future__ import annotations

import functools
import json
import re
import sys
from collections.abc import Callable, Collection, Generator
from typing import Final, NamedTuple, TypeVar

from octavo.frontend.text.dialects.events import (
    Event,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallBegin,
    ToolCallEnd,
)

_T = TypeVar("_T")
# What a grammar is: it stops where the text ends so far, and returns in the end.
Steps = Generator[None, None, _T]
Emit = Callable[[str], None]
# Makes a call's id of its index and of the id that the model wrote itself, if it did.
MakeId = Callable[[int, str], str]

_SPACE: Final = re.compile(r"\s*")
_WORD: Final = re.compile(r"[\w.:/\-]*")
_IN_STRING: Final = re.compile(r'(?:[^"\\]|\\.)*', re.DOTALL)
_CONTROL: Final = re.compile(r"[\x00-\x1f]")
_SCALAR: Final = re.compile(r"[\w.+\-\s]+")
_MAX_NAME: Final = 128
_CLOSING: Final = {"{": "}", "[": "]"}


class Markers(NamedTuple):
    """Texts to look for: patterns of one of them, and of what may become one at the end of a text."""

    whole: re.Pattern[str]
    begun: re.Pattern[str]


@functools.lru_cache(256)
def markers(*texts: str) -> Markers:
    """Return these markers. None may be part of another, unless as its end: so the first that is complete is the one."""
    assert not any(one in other[:-1] for one in texts for other in texts), "markers inside markers"
    begun = sorted({text[:size] for text in texts for size in range(1, len(text))}, key=len, reverse=True)
    whole, parts = ("|".join(map(re.escape, some)) or r"(?!)" for some in (dict.fromkeys(texts), begun))
    return Markers(re.compile(whole), re.compile(rf"(?:{parts})\Z"))


class Reader:
    """The text of one choice, and the events made of it.

    names: of the tools there are. ends: markers behind calls. one_call: further calls are dropped. thinking: whether the text
    read last is thought.
    """

    def __init__(self, names: Collection[str], make_id: MakeId, *, ends: Markers, one_call: bool = False) -> None:
        self.names = frozenset(names)
        self.thinking = False
        self.num_calls = 0
        self.ended = False
        self.text, self.at = "", 0
        self._mark: int | None = None
        self._events: list[Event] = []
        self._kind: Callable[[str], Event] = TextDelta
        self._pieces: list[str] = []
        self._make_id = make_id
        self._one_call = one_call
        self._ends = ends

    def feed(self, piece: str) -> None:
        """Add to the text; what has been read is forgotten, but for what `mark` keeps."""
        start = self.at if self._mark is None else self._mark
        self.text = self.text[start:] + piece
        self.at -= start
        self._mark = None if self._mark is None else 0

    def take_events(self) -> list[Event]:
        """Return what was found since the last time."""
        self._settle()
        events, self._events = self._events, []
        return events

    # What grammars find.

    def out(self, text: str) -> None:
        """It is part of the answer."""
        self._add(TextDelta, text)

    def think(self, text: str) -> None:
        """It is part of the reasoning."""
        self._add(ReasoningDelta, text)

    def begin_call(self, name: str, own_id: str = "") -> None:
        """A call begins, and what was kept for the case that it is none is forgotten."""
        self._mark = None
        self.num_calls += 1
        if self._shown:
            index = self.num_calls - 1
            self._settle()
            self._kind = functools.partial(ToolCallArguments, index)
            self._events.append(ToolCallBegin(index, self._make_id(index, own_id), name))

    def arguments(self, fragment: str) -> None:
        """It is part of the call's arguments."""
        if self._shown:
            self._add(self._kind, fragment)

    def end_call(self) -> None:
        """The call is over."""
        if self._shown:
            self._settle()
            self._events.append(ToolCallEnd(self.num_calls - 1))

    def mark(self) -> None:
        """Keep the text from here on: it may turn out to be no call."""
        self._mark = self.at

    def forget(self) -> None:
        """Let go of what `mark` keeps."""
        self._mark = None

    def fail(self) -> None:
        """It was no call: hand out as text what was kept."""
        if self._mark is not None:
            self.out(self.text[self._mark : self.at])
            self._mark = None

    @property
    def _shown(self) -> bool:
        return not (self._one_call and self.num_calls > 1)

    def _add(self, kind: Callable[[str], Event], text: str) -> None:
        if text:
            if kind is not self._kind:
                self._settle()
                self._kind = kind
            self._pieces.append(text)

    def _settle(self) -> None:
        if self._pieces:
            self._events.append(self._kind("".join(self._pieces)))
            self._pieces.clear()

    # What grammars ask for.

    def until(self, wanted: Markers, emit: Emit) -> Steps[str]:
        """Give everything before the first marker to `emit` and return the marker, which is read; "" at the text's end."""
        while True:
            found = wanted.whole.search(self.text, self.at)
            if found:
                emit(self.text[self.at : found.start()])
                self.at = found.end()
                return found[0]
            begun = None if self.ended else wanted.begun.search(self.text, self.at)
            safe = begun.start() if begun else len(self.text)
            emit(self.text[self.at : safe])
            self.at = safe
            if self.ended:
                return ""
            yield

    def accept(self, *options: str) -> Steps[str]:
        """Read and return the option that the text goes on with, "" if it is none. No option begins another."""
        while True:
            for option in options:
                if self.text.startswith(option, self.at):
                    self.at += len(option)
                    return option
            rest = self.text[self.at :]
            if self.ended or not any(option.startswith(rest) for option in options):
                return ""
            yield

    def solid(self) -> Steps[str]:
        """Read white space; return the character behind it, unread, "" at the text's end."""
        yield from self.run(_SPACE)
        return self.text[self.at : self.at + 1]

    def word(self) -> Steps[str]:
        """Read and return a name; "" if there is none, or one that is too long to be one."""
        word = yield from self.run(_WORD, _MAX_NAME + 1)
        return word if len(word) <= _MAX_NAME else ""

    def run(self, pattern: re.Pattern[str], most: int = sys.maxsize) -> Steps[str]:
        """Read and return all that fits a pattern of characters, up to so many."""
        found = ""
        while True:
            fits = pattern.match(self.text, self.at, min(len(self.text), self.at + most - len(found)))
            found += fits[0] if fits else ""
            self.at = fits.end() if fits else self.at
            if self.at < len(self.text) or self.ended or len(found) == most:
                return found
            yield

    def captured(self) -> Steps[tuple[str, bool]]:
        """Read a JSON value; return its text, and whether it is whole."""
        pieces: list[str] = []
        whole = yield from self.value(pieces.append)
        return "".join(pieces), whole

    def value(self, emit: Emit) -> Steps[bool]:
        """Give a JSON value to `emit` as it comes; whether it is whole and its brackets match.

        Control characters in strings, which models write now and then, are escaped.
        """
        open_brackets: list[str] = []
        while True:
            if self.at == len(self.text):
                if self.ended:
                    return False
                yield
                continue
            character = self.text[self.at]
            scalar = _SCALAR.match(self.text, self.at)
            if scalar:
                emit(scalar[0])
                self.at = scalar.end()
                continue
            if character in "}],:" and not open_brackets:
                return True  # The end of a number or a word is what comes behind it.
            if (character in "}]" and open_brackets.pop() != character) or character not in '"{}[],:':
                return False
            emit(character)
            self.at += 1
            if character == '"' and not (yield from self._string_rest(emit)):
                return False
            if character in "{[":
                open_brackets.append(_CLOSING[character])
            elif character in '"}]' and not open_brackets:
                return True

    def call_value(self) -> Steps[bool]:
        """Give a call its arguments. Where they stop being JSON, all before the end marker still belongs to them."""
        whole = yield from self.value(self.arguments)
        if not whole:
            yield from self.rest_of_call()
        return whole

    def rest_of_call(self) -> Steps[None]:
        """Give a call all before its end marker."""
        marker = yield from self.until(self._ends, self.arguments)
        self.at -= len(marker)

    def _string_rest(self, emit: Emit) -> Steps[bool]:
        """Give the rest of a string and its quote; whether that came."""
        while True:
            found = _IN_STRING.match(self.text, self.at)
            assert found is not None
            emit(_CONTROL.sub(lambda one: json.dumps(one[0])[1:-1], found[0]))
            self.at = found.end()
            if self.text.startswith('"', self.at):
                emit('"')
                self.at += 1
                return True
            if self.ended:
                emit(self.text[self.at :])
                self.at = len(self.text)
                return False
            yield
