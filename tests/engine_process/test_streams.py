"""Rows of a delta find their inboxes, and what waits is merged."""

from __future__ import annotations

import numpy as np

from octavo.base.errors import EngineDeadError
from octavo.engine.streams import FRONT_SHIFT, Streams
from octavo.protocol.arrays import int32, int64
from octavo.protocol.output import Finish, Start, TokenDelta
from octavo.protocol.request import Request
from octavo.protocol.sampling import SamplingParams
from octavo.protocol.step import TokenLogprobs


def request(key: int) -> Request:
    return Request(key=key, tokens=int32([1]), sampling=SamplingParams(), stop_ids=(), max_tokens=9, seed=0)


def delta(rows, **fields):
    """rows: (key, choice, first, ids)."""
    return TokenDelta(
        keys=int64([row[0] for row in rows]),
        choices=int32([row[1] for row in rows]),
        firsts=int32([row[2] for row in rows]),
        offsets=int32(np.cumsum([0] + [len(row[3]) for row in rows]).tolist()),
        ids=int32([token for row in rows for token in row[3]]),
        **fields,
    )


def test_rows_go_to_their_inboxes_and_unknown_keys_are_dropped():
    streams = Streams(front=3)
    one, two = streams.new_key(), streams.new_key()
    assert [key >> FRONT_SHIFT for key in (one, two)] == [3, 3]
    woken = []
    inbox = streams.open(request(one), lambda: woken.append(one))
    other = streams.open(request(two), lambda: woken.append(two))
    touched = streams.deliver(delta([(two, 1, 4, [7, 8]), (999, 0, 0, [1]), (one, 0, 0, [])]))
    assert touched == [other, inbox]
    assert woken == [two, one]
    assert [(n.first, n.ids) for n in other.take().values()] == [(4, [7, 8])]


def test_what_waits_is_merged_and_wakes_once():
    streams = Streams()
    woken = []
    inbox = streams.open(request(1), lambda: woken.append(1))
    for position in range(500):
        streams.deliver(delta([(1, 0, position, [position])]))
    assert woken == [1]
    assert len(inbox.news) == 1
    assert (inbox.news[0].first, inbox.take()[0].ids) == (0, list(range(500)))
    streams.deliver(delta([(1, 0, 500, [5])]))
    assert woken == [1, 1]


def test_starts_and_finishes_come_with_the_tokens():
    streams = Streams()
    inbox = streams.open(request(1))
    start = Start(key=1, choice=0, num_cached=16, time=2.0)
    end = Finish(key=1, choice=0, num_tokens=1, reason="length")
    streams.deliver(delta([], starts=(start,)))
    streams.deliver(delta([(1, 0, 0, [4])], finishes=(end, Finish(key=2, choice=0, num_tokens=0, reason="stop"))))
    news = inbox.take()[0]
    assert (news.start, news.first, news.ids, news.finish) == (start, 0, [4], end)


def test_logprobs_of_rows_that_want_them():
    streams = Streams()
    plain, wanting = streams.open(request(1)), streams.open(request(2))
    logprobs = TokenLogprobs(
        wanted=np.array([False, True, True]),
        chosen=np.array([0.0, -0.5, -0.25], np.float32),
        ranks=int32([0, 2, 1]),
        top_ids=int32([0, 0, 9, 5, 6, -1]).reshape(3, 2),
        top=np.array([[0, 0], [-0.125, -0.5], [-0.25, 0]], np.float32),
    )
    streams.deliver(delta([(1, 0, 0, [1]), (2, 0, 0, [5, 6])], logprobs=logprobs))
    assert plain.take()[0].logprobs is None
    assert wanting.take()[0].logprobs == [(-0.5, 2, [9, 5], [-0.125, -0.5]), (-0.25, 1, [6, -1], [-0.25, 0.0])]


def test_closed_requests_get_nothing_and_a_dead_engine_tells_all():
    streams = Streams()
    inbox = streams.open(request(1))
    assert streams.close(1)
    assert not streams.close(1)
    assert streams.deliver(delta([(1, 0, 0, [4])])) == []
    other = streams.open(request(2))
    error = EngineDeadError("gone")
    streams.fail(error)
    assert (inbox.error, other.error) == (None, error)
