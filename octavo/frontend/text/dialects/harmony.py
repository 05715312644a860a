"""OpenAI's harmony, the form of a whole turn: messages in channels, of which one is for thoughts and one for calls."""

from __future__ import annotations

import re
from typing import Final

from octavo.frontend.text.dialects.family import HARMONY_MARKERS
from octavo.frontend.text.dialects.reader import Emit, Reader, Steps, markers

_START, _CHANNEL, _CONSTRAIN, _MESSAGE, *_ENDS = HARMONY_MARKERS
_ANY: Final = markers(*HARMONY_MARKERS)
_HEAD: Final = markers(_MESSAGE, *_ENDS)
_BODY: Final = markers(_START, *_ENDS)
_TO: Final = re.compile(r"to=([\w.\-]+)")
_CHANNEL_NAME: Final = re.compile(re.escape(_CHANNEL) + r"\s*(\w+)")


def read_turn(reader: Reader, *, calls: bool) -> Steps[None]:
    """Read a turn, which may begin in the middle of thoughts. calls: there are tools.

    A message to a function is a call; what goes to tools of other kinds, which nobody has, counts as thought. Text outside of
    messages is part of the answer.
    """
    if reader.thinking:
        yield from _thoughts(reader)
    while True:
        marker = yield from reader.until(_ANY, reader.out)
        if not marker:
            return
        head: list[str] = []
        if marker not in (_MESSAGE, *_ENDS):
            head.append(marker)
            marker = yield from reader.until(_HEAD, head.append)
        if marker == _MESSAGE:
            yield from _message(reader, "".join(head), calls=calls)


def _message(reader: Reader, head: str, *, calls: bool) -> Steps[None]:
    channel, to = _CHANNEL_NAME.search(head), _TO.search(head)
    if to and calls and (to[1].startswith("functions.") or to[1] in reader.names):
        reader.begin_call(to[1].removeprefix("functions."))
        if (yield from reader.solid()) in ("", "<"):
            reader.arguments("{}")
        yield from _body(reader, reader.arguments)
        reader.end_call()
    elif (channel and channel[1] == "analysis") or (to and calls):
        yield from _thoughts(reader)
    else:
        yield from _body(reader, reader.out)


def _thoughts(reader: Reader) -> Steps[None]:
    reader.thinking = True
    reader.thinking = not (yield from _body(reader, reader.think))


def _body(reader: Reader, emit: Emit) -> Steps[str]:
    marker = yield from reader.until(_BODY, emit)
    if marker == _START:
        reader.at -= len(marker)  # It begins the next message.
    return marker
