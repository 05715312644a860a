"""Stop strings are found where str.find finds them, whatever the pieces."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.frontend.text.detokenizer import start_detokenizer
from octavo.frontend.text.stops import StopMatch, StopStrings
from octavo.frontend.text.tokenizer import Tokenizer


def first_stop(text: str, stops: list[str]) -> tuple[int, str] | None:
    """By definition: the stop string that is complete first, the longest if several are; (end, stop)."""
    ends = [(text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    return (min(ends)[0], min(ends)[2]) if ends else None


# Two letters make overlapping and nested stop strings likely.
WORDS = st.text("ab", min_size=1, max_size=6)


@settings(max_examples=1000, deadline=None)
@given(
    pieces=st.lists(st.text("abc", max_size=5), max_size=12), stops=st.lists(WORDS, max_size=4), include=st.booleans()
)
def test_the_text_ends_where_str_find_says(pieces: list[str], stops: list[str], include: bool):
    watch = StopStrings(stops, include=include)
    text = "".join(pieces)
    given_out = "".join(watch.push([piece]) for piece in pieces) + watch.flush()
    found = first_stop(text, stops)
    if found is None:
        assert watch.match is None
        assert given_out == text
        return
    end, stop = found
    assert given_out == text[: end if include else end - len(stop)]
    num_tokens = next(n for n in range(1, len(pieces) + 1) if len("".join(pieces[:n])) >= end)
    assert watch.match == StopMatch(stop=stop, num_tokens=num_tokens)


@settings(max_examples=300, deadline=None)
@given(
    pieces=st.lists(st.text("abc", max_size=5), max_size=12), stops=st.lists(WORDS, max_size=4), size=st.integers(1, 4)
)
def test_many_tokens_at_once_are_as_one_by_one(pieces: list[str], stops: list[str], size: int):
    single, many = StopStrings(stops), StopStrings(stops)
    one = "".join(single.push([piece]) for piece in pieces) + single.flush()
    several = "".join(many.push(pieces[i : i + size]) for i in range(0, len(pieces), size)) + many.flush()
    assert (one, single.match) == (several, many.match)


@settings(max_examples=300, deadline=None)
@given(
    pieces=st.lists(st.text("ab", min_size=1, max_size=3), min_size=1, max_size=10),
    stops=st.lists(WORDS, min_size=1, max_size=3),
)
def test_only_what_may_become_a_stop_string_is_held_back(pieces: list[str], stops: list[str]):
    watch = StopStrings(stops)
    given_out = ""
    for n, piece in enumerate(pieces, 1):
        given_out += watch.push([piece])
        if watch.match is not None:
            return
        text = "".join(pieces[:n])
        held = text[len(given_out) :]
        assert text == given_out + held
        longest = max(size for stop in stops for size in range(len(stop)) if text.endswith(stop[:size]))
        assert len(held) == longest


@pytest.mark.parametrize(
    ("stops", "pieces", "include", "expected", "match"),
    [
        (["beta ga"], ["alpha ", "beta", " gamma", " delta"], False, "alpha ", ("beta ga", 3)),
        (["beta ga"], ["alpha ", "beta", " gamma", " delta"], True, "alpha beta ga", ("beta ga", 3)),
        (["\n"], ["x", "\n\ny"], False, "x", ("\n", 2)),
        (["aab"], ["aaa", "ab"], False, "aa", ("aab", 2)),
        (["xyz", "y"], ["wxy", "z"], False, "wx", ("y", 1)),
        (["bc", "abc"], ["abc"], False, "", ("abc", 1)),
        (["###"], ["##", "x", "", "#"], False, "##x#", None),
    ],
)
def test_examples(stops: list[str], pieces: list[str], include: bool, expected: str, match: tuple[str, int] | None):
    watch = StopStrings(stops, include=include)
    assert watch.push(pieces) + watch.flush() == expected
    assert (watch.match and (watch.match.stop, watch.match.num_tokens)) == match


def test_nothing_comes_after_the_match():
    watch = StopStrings(["."])
    assert watch.push(["a.", "b"]) == "a"
    assert watch.push(["c"]) + watch.flush("d") == ""
    assert watch.num_tokens == 1


def test_min_tokens():
    watch = StopStrings(["aa"], min_tokens=3)
    assert watch.push(["aa", "b"]) == "aab"
    assert watch.push(["aa"]) == ""
    assert watch.match == StopMatch(stop="aa", num_tokens=3)


def test_the_detokenizers_last_text_may_complete_a_stop_string():
    watch = StopStrings(["x\ufffd"])
    assert watch.push(["wx"]) == "w"
    assert watch.flush("\ufffd") == ""
    assert watch.match == StopMatch(stop="x\ufffd", num_tokens=1)


def test_across_the_tokens_of_a_real_model(smollm: Tokenizer):
    ids = smollm.encode("The quick brown fox 😀 jumps over the lazy dog")
    detokenizer, watch = start_detokenizer(smollm), StopStrings(["😀 jum"])
    text = ""
    for index in ids:
        text += watch.push([detokenizer.push([index])])
    assert text == "The quick brown fox "
    assert watch.match is not None
    kept = smollm.decode(ids[: watch.match.num_tokens])
    assert "😀 jum" in kept
    assert "😀 jum" not in smollm.decode(ids[: watch.match.num_tokens - 1])


def test_long_stop_strings_and_long_near_misses_are_cheap():
    watch = StopStrings(["a" * 1_000_000 + "b", "c" * 500_000])
    begin = time.perf_counter()
    for _ in range(2000):
        watch.push(["aaaaaaaaad"])
    assert time.perf_counter() - begin < 1.0
    assert watch.match is None
