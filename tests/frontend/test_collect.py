"""From an engine's news to a request's output: text, stop strings, finishes, log-probabilities."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.engine.streams import ChoiceNews
from octavo.frontend.collect import Collector
from octavo.protocol.output import Finish, Start
from octavo.protocol.request import FinishChoice
from tests.frontend.bytes_model import EOS, STOP, make_intake, make_tokenizer, params

INTAKE = make_intake()
KEY = 9


def make(kind="delta", **fields):
    request, text = INTAKE.request("ask", params(**({"max_tokens": 100} | fields)), key=KEY)
    return Collector(request, request_id="r", prompt=text, tokenizer=make_tokenizer(), kind=kind)


def news(first, ids, *, choice=0, reason=None, stop_id=None, end=None, message="", logprobs=(), start=None):
    one = ChoiceNews(first, list(ids))
    one.logprobs = list(logprobs) or None
    one.start = start
    if reason is not None:
        num_tokens = first + len(ids) if end is None else end
        one.finish = Finish(
            key=KEY, choice=choice, num_tokens=num_tokens, reason=reason, stop_id=stop_id, message=message
        )
    return {choice: one}


def drain(collector, pieces, **end):
    """Feed pieces of ids as a stream of deltas; return text, ids and the last output."""
    text, ids, first, last = "", [], 0, None
    for index, piece in enumerate(pieces):
        output = collector.take(news(first, piece, **(end if index == len(pieces) - 1 else {})))
        first += len(piece)
        if output is not None:
            last = output
            text += output.outputs[0].text
            ids += output.outputs[0].token_ids
        if collector.finished:
            break
    return text, ids, last


def test_deltas_hold_only_what_is_new_and_cumulative_outputs_all():
    delta, cumulative = make("delta"), make("cumulative")
    shown = []
    for collector in (delta, cumulative):
        first = collector.take(news(0, b"ab"))
        second = collector.take(news(2, b"c", reason="length"))
        shown.append([(o.outputs[0].text, o.outputs[0].token_ids, o.finished) for o in (first, second)])
        assert second.outputs[0].finish_reason == "length"
        assert second.outputs[0].stop_reason is None
    assert shown[0] == [("ab", [97, 98], False), ("c", [99], True)]
    assert shown[1] == [("ab", [97, 98], False), ("abc", [97, 98, 99], True)]


def test_a_stream_waits_for_its_interval():
    for kind in ("delta", "cumulative"):
        collector = make(kind, stream_interval=3)
        shown = []
        for first in range(9):
            output = collector.take(
                news(first, b"abcdefghi"[first : first + 1], reason="length" if first == 8 else None)
            )
            shown.append(output and len(output.outputs[0].token_ids))
        assert (
            shown
            == {
                "delta": [1, None, None, 3, None, None, 3, None, 2],
                "cumulative": [1, None, None, 4, None, None, 7, None, 9],
            }[kind]
        )


@pytest.mark.parametrize("cut", [1, 2, 3, 5, 50])
@pytest.mark.parametrize(
    ("asked", "text", "kept"),
    [
        ((1, 1, 3), b"abaabbbc", b"abaabbb"),
        ((3, 1, 2), b"xyzxyabcab", b"xyzxyabcab"),
        ((3, 2, 2), b"aabcabcdef", b"aabcabc"),
        ((3, 3, 2), b"ababababcabcd", b"ababababcabc"),
        ((2, 1, 4), b"ababababab", b"abababab"),
    ],
)
def test_a_text_that_goes_round_in_circles_ends(asked, text, kept, cut):
    largest, smallest, count = asked
    detection = {"max_pattern_size": largest, "min_pattern_size": smallest, "min_count": count}
    collector = make(repetition_detection=detection)
    shown, ids, last = drain(collector, [text[i : i + cut] for i in range(0, len(text), cut)], reason="length")
    assert bytes(ids) == kept
    assert shown.encode() == kept
    ended = kept != text or collector.finishes != []
    assert last.outputs[0].finish_reason == ("repetition" if _circles(kept, asked) else "length")
    if ended and len(kept) < len(text) - cut:
        assert collector.finishes == [FinishChoice(key=KEY, choice=0, num_tokens=len(kept))]


def _circles(text, asked):
    largest, smallest, count = asked
    return any(
        text.endswith(text[-size:] * count) for size in range(smallest, largest + 1) if len(text) >= size * count
    )


def test_final_gives_one_output():
    collector = make("final")
    assert collector.take(news(0, b"ab")) is None
    output = collector.take(news(2, b"c", reason="stop"))
    assert (output.outputs[0].text, output.prompt, output.prompt_token_ids) == ("abc", "ask", [97, 115, 107])


def test_a_stop_string_over_three_tokens_never_leaks_and_tells_the_engine():
    collector = make(stop=["end"])
    assert collector.take(news(0, b"xe")).outputs[0].text == "x"
    assert collector.take(news(2, b"n")).outputs[0].text == ""
    output = collector.take(news(3, b"d more"))
    choice = output.outputs[0]
    assert (choice.text, choice.token_ids, choice.finish_reason, choice.stop_reason) == ("", [100], "stop", "end")
    assert output.finished
    assert collector.finishes == [FinishChoice(key=KEY, choice=0, num_tokens=4)]
    assert collector.take(news(9, b"late", reason="length")) is None


def test_a_half_stop_string_is_shown_when_the_text_ends():
    text, ids, last = drain(make(stop=["end"]), [b"xe", b"n"], reason="length")
    assert (text, ids) == ("xen", list(b"xen"))
    assert (last.outputs[0].finish_reason, last.outputs[0].stop_reason) == ("length", None)


def test_a_stop_string_completed_by_the_last_token_is_a_stop():
    collector = make(stop=["end"])
    text, ids, last = drain(collector, [b"xend"], reason="length")
    assert (text, ids, last.outputs[0].finish_reason, last.outputs[0].stop_reason) == (
        "x",
        list(b"xend"),
        "stop",
        "end",
    )
    assert collector.finishes == []


def test_the_stop_string_can_be_included_and_waits_for_min_tokens():
    assert drain(make(stop=["b"], include_stop_str_in_output=True), [b"abcb"])[0] == "ab"
    assert drain(make(stop=["b"], min_tokens=3), [b"abcb"])[0] == "abc"


def test_a_stop_token_stays_in_the_ids_but_not_in_the_text():
    text, ids, last = drain(make(stop_token_ids=[99]), [b"ab", b"c"], reason="stop", stop_id=99)
    assert (text, ids, last.outputs[0].stop_reason) == ("ab", list(b"abc"), 99)
    assert (
        drain(make(stop_token_ids=[99], include_stop_str_in_output=True), [b"abc"], reason="stop", stop_id=99)[0]
        == "abc"
    )


@pytest.mark.parametrize(("skip", "text"), [(True, "ab"), (False, "a</s>b<|stop|>")])
def test_special_tokens_are_shown_on_request(skip, text):
    collector = make(skip_special_tokens=skip, ignore_eos=True)
    output = collector.take(news(0, [97, EOS, 98, STOP], reason="length"))
    assert output.outputs[0].text == text


def test_the_models_own_end_has_no_stop_reason():
    text, ids, last = drain(make(), [b"ab", [EOS]], reason="stop", stop_id=EOS)
    assert (text, ids, last.outputs[0].stop_reason) == ("ab", [97, 98, EOS], None)


def test_a_special_token_as_stop_string_is_named_as_the_string():
    text, _, last = drain(make(stop=["<|stop|>"]), [b"ab", [STOP]], reason="stop", stop_id=STOP)
    assert (text, last.outputs[0].finish_reason, last.outputs[0].stop_reason) == ("ab", "stop", "<|stop|>")


def test_what_lies_past_the_engines_finish_does_not_count():
    text, ids, _ = drain(make(), [b"ab", b"cdef"], reason="length", end=3)
    assert (text, ids) == ("abc", list(b"abc"))


def test_characters_are_whole_or_replaced_at_the_very_end():
    emoji = "🙂".encode()
    assert drain(make(), [emoji[:2], emoji[2:]], reason="length")[0] == "🙂"
    collector = make()
    assert collector.take(news(0, emoji[:2])).outputs[0].text == ""
    assert collector.take(news(2, [], reason="length")).outputs[0].text == "\ufffd"


def test_without_detokenizing_there_are_ids_and_no_text():
    assert drain(make(detokenize=False), [b"ab"], reason="length")[:2] == ("", [97, 98])


def test_logprobs_name_the_chosen_token_first_and_skip_empty_places():
    collector = make("cumulative", logprobs=2, stop=["b"])
    raws = [(-1.5, 3, [65, 97, -1], [-0.1, -0.2, 0.0]), (-0.25, 1, [98, 65, -1], [-0.25, -0.5, 0.0]), (-9.0, 1, [], [])]
    output = collector.take(news(0, b"abc", logprobs=raws)).outputs[0]
    assert [list(position) for position in output.logprobs] == [[97, 65], [98, 65]]
    first = output.logprobs[0]
    assert (first[97].logprob, first[97].rank, first[97].decoded_token) == (-1.5, 3, "a")
    assert (first[65].logprob, first[65].rank, first[65].decoded_token) == (-0.1, 1, "A")
    assert output.cumulative_logprob == -1.75


def test_choices_end_apart_and_only_changed_ones_are_shown():
    collector = make(n=2)
    assert [c.index for c in collector.take(news(0, b"ab", choice=1)).outputs] == [1]
    assert not collector.take(news(0, b"x", choice=0, reason="stop")).finished
    both = news(2, b"c", choice=1, reason="length") | news(1, b"never", choice=0)
    output = collector.take(both)
    assert [(c.index, c.text) for c in output.outputs] == [(1, "c")]
    assert output.finished


def test_times_and_cached_tokens_are_the_engines_and_the_first_choices():
    collector = make(n=2)
    collector.take(news(0, b"a", choice=1, start=Start(key=KEY, choice=1, num_cached=2, time=20.0)))
    output = collector.take(news(0, b"a", choice=0, start=Start(key=KEY, choice=0, num_cached=1, time=21.0)))
    assert output.num_cached_tokens == 1
    assert output.metrics.first_scheduled == 20.0
    assert output.metrics.first_token >= output.metrics.arrival
    assert output.metrics.finished is None


def test_an_error_ends_the_choice_with_its_message():
    output = make().take(news(0, [], reason="error", message="too long"))
    assert (output.outputs[0].finish_reason, output.error, output.finished) == ("error", "too long", True)


def test_an_abort_shows_what_was_held_back():
    collector = make(stop=["end"])
    collector.take(news(0, b"xe"))
    output = collector.abort()
    assert (output.outputs[0].text, output.outputs[0].finish_reason, output.finished) == ("e", "abort", True)
    assert collector.abort() is None


def test_tokens_out_of_order_are_a_bug():
    with pytest.raises(AssertionError, match="out of order"):
        make().take(news(3, b"a"))


@settings(max_examples=150, deadline=None)
@given(
    text=st.text("abé🙂", max_size=12),
    stops=st.lists(st.text("abé", min_size=1, max_size=3), max_size=2),
    cuts=st.lists(st.integers(1, 5), max_size=20),
    include=st.booleans(),
)
def test_any_split_gives_the_same_text_and_ids(text, stops, cuts, include):
    data = text.encode()
    pieces, rest = [], data
    for cut in cuts:
        pieces.append(rest[:cut])
        rest = rest[cut:]
    pieces = [piece for piece in pieces if piece] + [rest]
    fields = {"stop": stops, "include_stop_str_in_output": include}
    streamed = drain(make(**fields), pieces, reason="length")
    whole = drain(make("final", **fields), [data], reason="length")
    assert streamed[:2] == whole[:2]
    assert streamed[2].outputs[0].finish_reason == whole[2].outputs[0].finish_reason
    assert streamed[2].outputs[0].stop_reason == whole[2].outputs[0].stop_reason
