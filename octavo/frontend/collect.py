"""One request's answer, put together from the engine's news: text, stop strings, log-probabilities, finish reasons.

The same code serves streams and whole answers, the server and `LLM`. What the engine still sends for a choice that has
ended here is ignored, so nothing past a finish is in any text, count or log-probability.

When a token id ends a choice, the id stays in `token_ids` and its text is not shown, unless `include_stop_str_in_output`.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Literal

from octavo.engine.streams import ChoiceNews, RawLogprob
from octavo.frontend.text.detokenizer import start_detokenizer
from octavo.frontend.text.stops import Repetition, StopMatch, StopStrings
from octavo.frontend.text.tokenizer import Tokenizer
from octavo.protocol.output import CompletionOutput, Finish, FinishReason, Logprob, RequestMetrics, RequestOutput
from octavo.protocol.request import FinishChoice, Request
from octavo.protocol.sampling import RequestOutputKind, SamplingParams

# What an output holds: what is new, all so far, or there is one output, the whole answer.
OutputKind = RequestOutputKind | Literal["delta", "cumulative", "final"]


class Collector:
    """The state of one request. tokenizer: None leaves text empty, as `detokenize=False` does. shown: ids of special tokens
    whose text is given out in any case.

    finishes: choices that a stop string ended; whoever drives the collector sends them to the engine and clears the list.
    """

    def __init__(
        self,
        request: Request,
        *,
        request_id: str,
        prompt: str | None,
        tokenizer: Tokenizer | None,
        kind: OutputKind,
        shown: Collection[int] = (),
    ) -> None:
        self.finishes: list[FinishChoice] = []
        self.request_id = request_id
        self.prompt = prompt
        self.prompt_token_ids: list[int] = request.tokens.tolist()
        self._key = request.key
        self._kind: OutputKind = kind
        self._choices = [_Choice(index, request.sampling, tokenizer, shown) for index in range(request.sampling.n)]
        self._unfinished = len(self._choices)
        self._metrics = RequestMetrics(arrival=request.arrival)
        self._num_cached = 0
        self._error: str | None = None
        self._tokenizer = tokenizer
        asked = request.sampling.prompt_logprobs is not None
        self._prompt_logprobs: list[dict[int, Logprob] | None] | None = [None] if asked else None

    @property
    def started(self) -> bool:
        """Whether the engine has begun with it."""
        return self._metrics.first_scheduled is not None

    @property
    def finished(self) -> bool:
        """Whether every choice has ended."""
        return self._unfinished == 0

    def take(self, news: Mapping[int, ChoiceNews]) -> RequestOutput | None:
        """Take news of any choices; return the output they make, None if there is nothing to show yet."""
        changed: list[_Choice] = []
        for index, one in news.items():
            choice = self._choices[index]
            if choice.finish_reason is not None:
                continue
            if one.scores:
                self._take_scores(one)
            if one.start is not None:
                self._start(one.start.time, one.start.num_cached, index)
            if one.ids and self._metrics.first_token is None:
                self._metrics.first_token = time.time()
            changed.append(choice)
            if choice.take(one):
                self.finishes.append(FinishChoice(key=self._key, choice=index, num_tokens=choice.num_tokens))
            if choice.finish_reason is not None:
                self._end_choice(one.finish)
        return self._output(changed)

    def abort(self) -> RequestOutput | None:
        """End every running choice with reason "abort"; return the last output."""
        running = [choice for choice in self._choices if choice.finish_reason is None]
        for choice in running:
            choice.end("abort")
            self._end_choice(None)
        return self._output(running)

    def _take_scores(self, news: ChoiceNews) -> None:
        """Keep log-probabilities of the prompt; a sequence that was preempted in its prompt gives the first ones again."""
        known = self._prompt_logprobs
        for place, raw in news.scores:
            if known is not None and place == len(known):
                known.append(_entries(self.prompt_token_ids[place], raw, self._tokenizer))

    def _start(self, when: float, num_cached: int, index: int) -> None:
        if self._metrics.first_scheduled is None:
            self._metrics.first_scheduled = when
        if index == 0:
            self._num_cached = num_cached

    def _end_choice(self, finish: Finish | None) -> None:
        self._unfinished -= 1
        if finish is not None and finish.message:
            self._error = finish.message
        if self.finished:
            self._metrics.finished = time.time()

    def _output(self, changed: list[_Choice]) -> RequestOutput | None:
        if self._prompt_logprobs is not None:
            # Another choice may be faster than the one that gives them, if that was preempted: it waits.
            if len(self._prompt_logprobs) < len(self.prompt_token_ids) and not self.finished:
                return None
            changed = self._choices
        if self._kind == "final":
            if not self.finished:
                return None
            shown = self._choices
        elif self._kind == "cumulative":
            shown = self._choices if any(choice.due for choice in changed) else []
        else:
            shown = [choice for choice in changed if choice.due]
        if not shown:
            return None
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt,
            prompt_token_ids=self.prompt_token_ids,
            prompt_logprobs=self._prompt_logprobs,
            outputs=[choice.output(keep=self._kind != "delta") for choice in shown],
            finished=self.finished,
            num_cached_tokens=self._num_cached,
            metrics=self._metrics,
            error=self._error,
        )


class _Choice:
    """One choice: what it has to show, and the text that may still change."""

    def __init__(self, index: int, params: SamplingParams, tokenizer: Tokenizer | None, shown: Collection[int]) -> None:
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None
        self.num_tokens = 0
        self.has_news = False
        self._index = index
        self._params = params
        self._interval = params.stream_interval or 1
        self._num_shown = 0
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._text: list[str] = []
        self._logprobs: list[dict[int, Logprob]] | None = None if params.logprobs is None else []
        self._cumulative: float | None = None if params.logprobs is None else 0.0
        self._detokenizer = None
        self._stops = None
        detection = params.repetition_detection
        self._repetition = None if detection is None else Repetition(detection)
        if tokenizer is not None and params.detokenize:
            self._detokenizer = start_detokenizer(
                tokenizer, skip_special_tokens=params.skip_special_tokens, shown=shown
            )
            if params.stop:
                self._stops = StopStrings(
                    params.stop, include=params.include_stop_str_in_output, min_tokens=params.min_tokens
                )

    @property
    def due(self) -> bool:
        """Whether there is news, and it has waited long enough to be shown: the first and the last do not wait."""
        waited = self.num_tokens - self._num_shown
        enough = not self._num_shown or self.finish_reason is not None or waited >= self._interval
        return self.has_news and enough

    def take(self, news: ChoiceNews) -> bool:
        """Take new tokens and the end, if it came; True if the text itself ended the choice before the engine did."""
        finish = news.finish
        assert not news.ids or news.first == self.num_tokens, "the engine sent tokens out of order"
        counted = len(news.ids) if finish is None else max(0, min(len(news.ids), finish.num_tokens - self.num_tokens))
        hidden = finish is not None and finish.stop_id is not None and not self._params.include_stop_str_in_output
        looped = None if self._repetition is None else self._repetition.push(news.ids[:counted])
        if looped is not None and looped < counted:
            counted, hidden = looped, False
        self._decode(news.ids[: counted - 1 if hidden and counted else counted])
        stopped = self._matched
        if stopped is not None:
            counted = stopped.num_tokens - self.num_tokens
        self._keep(news.ids[:counted], (news.logprobs or [])[:counted])
        if stopped is not None:
            self.end("stop")
            return finish is None
        if looped is not None:
            self.end("repetition")
            return finish is None
        if finish is not None:
            self.stop_reason = self._stop_reason(finish)
            self.end(finish.reason)
        return False

    def end(self, reason: FinishReason) -> None:
        """End the choice and let out the text that was held back."""
        if self._detokenizer is not None and self._matched is None:
            rest = self._detokenizer.flush()
            self._show(rest if self._stops is None else self._stops.flush(rest))
        matched = self._matched
        self.finish_reason = reason if matched is None else "stop"
        if matched is not None:
            self.stop_reason = matched.stop
        self.has_news = True

    def output(self, *, keep: bool) -> CompletionOutput:
        """Return what there is to show; unless `keep`, it is not shown again."""
        self.has_news = False
        self._num_shown = self.num_tokens
        output = CompletionOutput(
            index=self._index,
            text="".join(self._text),
            token_ids=list(self._ids) if keep else self._ids,
            cumulative_logprob=self._cumulative,
            logprobs=list(self._logprobs) if keep and self._logprobs is not None else self._logprobs,
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
        )
        if keep:
            self._text = [output.text]
        else:
            self._text, self._ids = [], []
            self._logprobs = None if self._logprobs is None else []
        return output

    @property
    def _matched(self) -> StopMatch | None:
        return None if self._stops is None else self._stops.match

    def _stop_reason(self, finish: Finish) -> int | str | None:
        """Return what to call the token id that ended it: the user's id, or the stop string that it spells."""
        stop_id, params = finish.stop_id, self._params
        if stop_id is None or stop_id in params.stop_token_ids:
            return stop_id
        text = None if self._tokenizer is None or not params.stop else self._tokenizer.token_text(stop_id)
        return text if text in params.stop else None

    def _decode(self, ids: list[int]) -> None:
        """Add the text of these tokens, up to a stop string."""
        detokenizer = self._detokenizer
        if detokenizer is None:
            return
        if self._stops is None:
            self._show(detokenizer.push(ids))
        else:
            # Token by token, so that the one which completes a stop string is known.
            self._show(self._stops.push([detokenizer.push([token]) for token in ids]))

    def _show(self, text: str) -> None:
        if text:
            self._text.append(text)
            self.has_news = True

    def _keep(self, ids: list[int], logprobs: list[RawLogprob]) -> None:
        self.num_tokens += len(ids)
        self._ids += ids
        self.has_news = self.has_news or bool(ids)
        if self._logprobs is not None:
            for token, raw in zip(ids, logprobs, strict=True):
                self._cumulative = (self._cumulative or 0.0) + raw[0]
                entries = _entries(token, raw, self._tokenizer)
                if self._params.logprob_token_ids is not None:
                    # These were not asked for because they are the likeliest: nobody knows how likely they are.
                    entries = {i: one if i == token else replace(one, rank=None) for i, one in entries.items()}
                self._logprobs.append(entries)


def _entries(token: int, raw: RawLogprob, tokenizer: Tokenizer | None) -> dict[int, Logprob]:
    """Return id -> Logprob of one position, the token that stands there first."""
    chosen, rank, top_ids, top = raw
    entries = {token: Logprob(logprob=chosen, rank=rank, decoded_token=_text(token, tokenizer))}
    for position, (other, logprob) in enumerate(zip(top_ids, top, strict=True), 1):
        if other >= 0 and other not in entries:
            entries[other] = Logprob(logprob=logprob, rank=position, decoded_token=_text(other, tokenizer))
    return entries


def _text(token: int, tokenizer: Tokenizer | None) -> str | None:
    return None if tokenizer is None else tokenizer.token_bytes(token).decode("utf-8", "replace")
