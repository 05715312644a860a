"""Every dialect: its transcripts give their events, wherever the text is cut."""

from __future__ import annotations

import codecs

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.frontend.text.dialects.events import (
    Event,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallBegin,
    ToolCallEnd,
)
from octavo.frontend.text.dialects.families import families
from tests.host.text.dialects.transcripts import TRANSCRIPTS, dialect_of, events_of

Row = tuple[str, str, str, list[Event]]
_EACH = pytest.mark.parametrize("row", TRANSCRIPTS, ids=[f"{row[0]}-{row[1]}-{i}" for i, row in enumerate(TRANSCRIPTS)])


@_EACH
def test_whole_text(row: Row) -> None:
    calls, reasoning, text, expected = row
    assert events_of(dialect_of(calls, reasoning), [text]) == expected


@_EACH
def test_cut_at_every_byte(row: Row) -> None:
    calls, reasoning, text, expected = row
    dialect = dialect_of(calls, reasoning)
    data = text.encode()
    for cut in range(1, len(data)):
        utf8 = codecs.getincrementaldecoder("utf-8")()
        assert events_of(dialect, [utf8.decode(data[:cut]), utf8.decode(data[cut:])]) == expected, data[:cut]
    assert events_of(dialect, list(text)) == expected


def test_no_family_is_without_a_transcript() -> None:
    shown = {name for calls, reasoning, *_ in TRANSCRIPTS for name in (calls, reasoning)}
    for family in families():
        for side in (family.calls, family.reasoning, family.harmony):
            assert side is None or not side.names or shown & set(side.names), side


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_any_cuts_of_any_mixture(data: st.DataObject) -> None:
    """Whatever is written, even by a model that has lost its way, the cuts change nothing."""
    calls, reasoning, text, _ = data.draw(st.sampled_from(TRANSCRIPTS))
    others = data.draw(st.sampled_from(TRANSCRIPTS))[2]
    first, second = data.draw(st.integers(0, len(text))), data.draw(st.integers(0, len(others)))
    mixed = text[:first] + data.draw(st.text('<{["\\]}>a \n|', max_size=6)) + others[second:]
    dialect = dialect_of(calls, reasoning)
    thinking = data.draw(st.sampled_from((None, True, False)))
    whole = events_of(dialect, [mixed], thinking=thinking)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(mixed)), max_size=12)))
    pieces = [mixed[a:b] for a, b in zip([0, *cuts], [*cuts, len(mixed)], strict=True)]
    assert events_of(dialect, pieces, thinking=thinking) == whole
    assert events_of(dialect, list(mixed), thinking=thinking) == whole
    assert_in_order(whole)


def assert_in_order(events: list[Event]) -> None:
    """Calls begin, go on and end one after the other, counted from 0; nothing is empty."""
    open_call, number = None, 0
    for event in events:
        match event:
            case TextDelta(text=text) | ReasoningDelta(text=text):
                assert text
                assert open_call is None
            case ToolCallBegin(index=index, name=name):
                assert open_call is None
                assert (index, bool(name)) == (number, True)
                open_call, number = index, number + 1
            case ToolCallArguments(index=index, fragment=fragment):
                assert fragment
                assert index == open_call
            case ToolCallEnd(index=index):
                assert index == open_call
                open_call = None
    assert open_call is None
