"""From the flat rows of a TokenDelta to one inbox per request. The same code behind the in-process and the remote engine.

An inbox that nobody reads holds one integer per token and nothing else that grows: what arrives is merged into what waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from octavo.base.errors import OctavoError
from octavo.protocol.arrays import Float32Array, Int64Array
from octavo.protocol.output import Finish, PromptScores, Start, TokenDelta
from octavo.protocol.request import Request
from octavo.protocol.step import TokenLogprobs

# The upper bits of a request's key, and of a control ticket, are the number of the front that made it.
FRONT_SHIFT = 48

# One token's (log-probability, rank, alternatives' ids, their log-probabilities).
RawLogprob = tuple[float, int, list[int], list[float]]


class ChoiceNews(msgspec.Struct):
    """What is new of one choice. first: output index of the first id. logprobs: one a token; None if none was asked for.

    scores: of tokens of the prompt, each with its place. vector: what was asked for instead of tokens.
    """

    first: int
    ids: list[int]
    logprobs: list[RawLogprob] | None = None
    scores: Sequence[tuple[int, RawLogprob]] = ()
    vector: Float32Array | None = None
    start: Start | None = None
    finish: Finish | None = None


class Inbox:
    """Where the news of one request wait. wake: called when there are some after there were none. error: the engine's end."""

    __slots__ = ("error", "key", "news", "wake")

    def __init__(self, key: int, wake: Callable[[], None] | None = None) -> None:
        self.key = key
        self.wake = wake
        self.news: dict[int, ChoiceNews] = {}
        self.error: OctavoError | None = None

    def take(self) -> dict[int, ChoiceNews]:
        """Return the news by choice, and leave none."""
        news, self.news = self.news, {}
        return news


class Streams:
    """The open requests of one front, by key."""

    def __init__(self, front: int = 0) -> None:
        self._next_key = front << FRONT_SHIFT
        self._open: dict[int, Inbox] = {}

    def __len__(self) -> int:
        return len(self._open)

    def new_key(self) -> int:
        """Return a key that this front has not used."""
        self._next_key += 1
        return self._next_key

    def open(self, request: Request, wake: Callable[[], None] | None = None) -> Inbox:
        """Return a new inbox for what comes for `request`."""
        assert request.key not in self._open
        inbox = self._open[request.key] = Inbox(request.key, wake)
        return inbox

    def close(self, key: int) -> bool:
        """Forget a request: what still comes for it is dropped. False if it was closed already."""
        return self._open.pop(key, None) is not None

    def deliver(self, delta: TokenDelta) -> list[Inbox]:
        """Put every row into its inbox; return, and wake, the inboxes that had been empty."""
        touched: list[Inbox] = []
        # One turn per running sequence and step: written out, because calls would double its cost.
        ids, choices, firsts = delta.ids.tolist(), delta.choices.tolist(), delta.firsts.tolist()
        begin, ends, find = 0, delta.offsets[1:].tolist(), self._open.get
        for key, choice, first, end in zip(delta.keys.tolist(), choices, firsts, ends, strict=True):
            inbox = find(key)
            if inbox is not None:
                waiting = inbox.news
                if not waiting:
                    touched.append(inbox)
                news = waiting.get(choice)
                if news is None:
                    news = waiting[choice] = ChoiceNews(first, ids[begin:end])
                else:
                    news.first = news.first if news.ids else first
                    news.ids += ids[begin:end]
                if delta.logprobs is not None:
                    _add_logprobs(news, delta.logprobs, range(begin, end))
            begin = end
        if delta.scores is not None:
            self._deliver_scores(delta.scores, touched)
        if delta.vectors is not None:
            self._deliver_vectors(delta.vector_keys, delta.vectors, touched)
        for start in delta.starts:
            if (news := self._news(start.key, start.choice, 0, touched)) is not None:
                news.start = start
        for finish in delta.finishes:
            if (news := self._news(finish.key, finish.choice, finish.num_tokens, touched)) is not None:
                news.finish = finish
        _wake(touched)
        return touched

    def fail(self, error: OctavoError) -> None:
        """Tell every open request that the engine is dead."""
        inboxes = list(self._open.values())
        for inbox in inboxes:
            inbox.error = error
        _wake(inboxes)

    def _deliver_scores(self, scores: PromptScores, touched: list[Inbox]) -> None:
        for row, (key, first) in enumerate(zip(scores.keys.tolist(), scores.firsts.tolist(), strict=True)):
            begin, end = scores.offsets[row : row + 2].tolist()
            if (news := self._news(key, 0, 0, touched)) is not None:
                new = ((first + i - begin, _raw(scores.logprobs, i)) for i in range(begin, end))
                news.scores = [*news.scores, *new]

    def _deliver_vectors(self, keys: Int64Array, vectors: Float32Array, touched: list[Inbox]) -> None:
        for row, key in enumerate(keys.tolist()):
            if (news := self._news(key, 0, 0, touched)) is not None:
                news.vector = vectors[row].copy()

    def _news(self, key: int, choice: int, first: int, touched: list[Inbox]) -> ChoiceNews | None:
        inbox = self._open.get(key)
        if inbox is None:
            return None
        if not inbox.news:
            touched.append(inbox)
        if choice not in inbox.news:
            inbox.news[choice] = ChoiceNews(first, [])
        return inbox.news[choice]


def _add_logprobs(news: ChoiceNews, logprobs: TokenLogprobs, tokens: range) -> None:
    for token in tokens:
        if logprobs.wanted[token]:
            if news.logprobs is None:
                news.logprobs = []
            news.logprobs.append(_raw(logprobs, token))


def _raw(logprobs: TokenLogprobs, token: int) -> RawLogprob:
    top = logprobs.top_ids[token].tolist(), logprobs.top[token].tolist()
    return float(logprobs.chosen[token]), int(logprobs.ranks[token]), *top


def _wake(inboxes: Iterable[Inbox]) -> None:
    for inbox in inboxes:
        if inbox.wake is not None:
            inbox.wake()
