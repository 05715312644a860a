"""The one engine under all dialects: text in any pieces, events out; they depend on the text alone.

The rules, whatever the dialect:
- Reasoning begins where the prompt or the dialect says, or with a marker at the beginning of the answer or behind a call;
  elsewhere a marker is text, unless it is a token of its own that text cannot spell. It ends with its end marker, or with a
  call's marker that is such a token. White space behind both is dropped.
- A call begins with its marker anywhere in the answer. If no call follows, the text comes out as it is, marker and all; once
  its name is known it is a call, and what follows are its arguments, as the model wrote them. A text that ends before the
  name comes out as text; one that ends in the arguments is a call whose arguments are cut off.
- Without a tool there is no call, and no marker of one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from octavo.frontend.text.dialects.events import Event
from octavo.frontend.text.dialects.families import Dialect
from octavo.frontend.text.dialects.family import Reasoning
from octavo.frontend.text.dialects.harmony import read_turn
from octavo.frontend.text.dialects.json_calls import JsonCalls
from octavo.frontend.text.dialects.reader import MakeId, Reader, Steps, markers


class TurnParser:
    """The state of one choice. schemas: of each tool's parameters, by name; none means that there are no tools.

    thinking: the prompt ends within the thoughts (None: it does not say). tokens: markers that are tokens of their own.
    """

    def __init__(
        self,
        dialect: Dialect,
        schemas: Mapping[str, Mapping[str, Any]],
        make_id: MakeId,
        *,
        thinking: bool | None = None,
        tokens: Collection[str] = (),
        one_call: bool = False,
    ) -> None:
        self._schemas = schemas
        self._calls = dialect.calls if schemas else None
        self._reasoning = dialect.reasoning or Reasoning(names=())
        self._tokens = frozenset(tokens)
        calls = self._calls or JsonCalls(names=())
        always = (*calls.begin, *calls.end, *calls.noise, *self._reasoning.noise)
        self._wanted = markers(*always, *self._tokens)
        self._section = False
        self._reader = Reader(schemas, make_id, ends=markers(*calls.end), one_call=one_call)
        self._reader.thinking = self._reasoning.inside if thinking is None else thinking
        self._steps = read_turn(self._reader, calls=bool(schemas)) if dialect.harmony else self._turn()
        self._step()

    @property
    def num_calls(self) -> int:
        """Calls that have begun."""
        return self._reader.num_calls

    @property
    def thinking(self) -> bool:
        """Whether the text so far ends within thoughts."""
        return self._reader.thinking

    def push(self, text: str) -> list[Event]:
        """Take the next piece of text; return what is certain now."""
        if text:
            self._reader.feed(text)
            self._step()
        return self._reader.take_events()

    def end(self) -> list[Event]:
        """Return what was held back: the text has ended."""
        self._reader.ended = True
        self._step()
        return self._reader.take_events()

    def _step(self) -> None:
        next(self._steps, None)

    def _turn(self) -> Steps[None]:
        reader = self._reader
        keep_space = not reader.thinking
        if reader.thinking:
            yield from self._think(*self._reasoning.begin)
        while True:
            yield from self._begin(keep_space=keep_space)
            again = keep_space = False
            while not again:
                marker = yield from reader.until(self._wanted, reader.out)
                if not marker:
                    return
                again = yield from self._take(marker)

    def _think(self, *begin: str) -> Steps[None]:
        """Read thoughts; a marker of `begin` at their beginning says nothing new."""
        reader, reasoning = self._reader, self._reasoning
        reader.thinking = True
        yield from reader.solid()
        if begin and (yield from reader.accept(*begin)):
            yield from reader.solid()
        calls = () if self._calls is None else [one for one in self._calls.begin if one in self._tokens]
        marker = yield from reader.until(markers(*reasoning.end, *calls), reader.think)
        if marker in calls:
            reader.at -= len(marker)
        reader.thinking = not marker

    def _begin(self, *, keep_space: bool) -> Steps[None]:
        """Read what may stand at the beginning of an answer only."""
        reader, calls = self._reader, self._calls
        while True:
            if keep_space:
                reader.mark()
            first = yield from reader.solid()
            if self._reasoning.begin and (yield from reader.accept(*self._reasoning.begin)):
                reader.forget()
                yield from self._think()
            elif calls is not None and first and first in calls.bare:
                if not keep_space:
                    reader.mark()
                if not (yield from calls.read(reader, self._schemas, marked=False)):
                    break
            else:
                break
            keep_space = False
        reader.fail()

    def _take(self, marker: str) -> Steps[bool]:
        """Act on a marker; whether an answer may begin behind it."""
        reader, calls = self._reader, self._calls
        if calls is not None and marker in calls.begin:
            reader.at -= len(marker)
            reader.mark()
            found = yield from calls.read(reader, self._schemas, marked=True)
            reader.fail()
            self._section = self._section or found
            return found
        if marker in self._reasoning.begin:
            yield from self._think()
        elif calls is not None and marker in calls.end:
            if not self._section and marker not in self._tokens:
                reader.out(marker)
                return False
            self._section = False
        return True
