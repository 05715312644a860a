"""A TextService without an engine: deterministic text, one token a word, everything it was asked is recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from octavo.base.errors import (
    EngineDeadError,
    EngineStartingError,
    InvalidRequestError,
    OctavoError,
    QueueFullError,
    QueueTimeoutError,
    ShuttingDownError,
)
from octavo.frontend.service import RequestStream, TextService
from octavo.frontend.text.chat import checked_messages
from octavo.protocol.output import CompletionOutput, EngineStats, Logprob, RequestMetrics, RequestOutput
from octavo.protocol.sampling import SamplingParams

VOCAB = 1000
MAX_MODEL_LEN = 64
MAX_LOGPROBS = 20
WORDS = ["Ein", " Oktav", " hat", " acht", " Blätter", ",", " 八", " 🙂"]


class FakeTokenizer:
    """Ids below 256 are bytes; the others are words of the answer."""

    markers: Mapping[str, int] = {}

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return ([1] if add_special_tokens else []) + [256 + ord(character) % 700 for character in text]

    def token_text(self, token: int) -> str:
        return WORDS[token % len(WORDS)]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return "".join(WORDS[token % len(WORDS)] for token in ids)

    def special_within(self, texts: str) -> dict[int, str]:
        return {}

    def token_id(self, text: str) -> int | None:
        return None

    def token_bytes(self, token: int) -> bytes:
        return WORDS[token % len(WORDS)].encode()


def answer_ids(choice: int, count: int) -> list[int]:
    """Return the ids that choice `choice` gives, so that every choice has its own text."""
    return [(choice * 3 + position) % len(WORDS) for position in range(count)]


def answer_text(choice: int, count: int) -> str:
    return "".join(WORDS[i] for i in answer_ids(choice, count))


def logprobs_of(token: int, count: int) -> dict[int, Logprob]:
    """Return the chosen token (rank 2, or 1 on even ids) and the `count` likeliest ones."""
    rank = 1 if token % 2 == 0 else 2
    entries = {token: Logprob(logprob=-0.5 * rank, rank=rank, decoded_token=WORDS[token % len(WORDS)])}
    for position in range(1, count + 1):
        if position != rank:
            other = (token + position) % len(WORDS)
            entries[other] = Logprob(logprob=-0.5 * position, rank=position, decoded_token=WORDS[other])
    return entries


class FakeStream(RequestStream):
    """Gives out one token of every choice at a time."""

    def __init__(self, service: FakeService, tokens: list[int], params: SamplingParams, label: str) -> None:
        self.request_id = label
        self.prompt = None
        self.prompt_token_ids = tokens
        self._service = service
        self._params = params
        self._position = 0
        # Thousands of choices say little each: a million tokens would take longer than any test may.
        self._count = min(params.max_tokens or 8, MAX_MODEL_LEN - len(tokens), max(1, 2**14 // params.n))
        self._metrics = RequestMetrics(arrival=10.0, first_scheduled=10.25)
        self.closed = False
        self.ended = False

    async def __anext__(self) -> RequestOutput:
        if self.ended:
            raise StopAsyncIteration
        await asyncio.sleep(self._service.delay)
        if self._service.dead:
            raise EngineDeadError("the engine died")
        if self._service.expires:
            raise QueueTimeoutError("the request waited for 3 seconds")
        position, self._position = self._position, self._position + 1
        failing = self._service.fail_at == position
        aborted = self._service.aborting
        last = position == self._count - 1
        reason = "error" if failing else "abort" if aborted else "length" if last else None
        self.ended = reason is not None
        outputs = [self._choice(index, position, reason) for index in range(self._params.n)]
        top = self._params.prompt_logprobs
        scores = None if top is None else [None, *(logprobs_of(i, top) for i in self.prompt_token_ids[1:])]
        return RequestOutput(
            request_id=self.request_id,
            prompt=None,
            prompt_logprobs=scores,
            prompt_token_ids=self.prompt_token_ids,
            outputs=outputs,
            finished=self.ended,
            num_cached_tokens=self._service.num_cached,
            metrics=self._metrics,
            error="the logits are not numbers" if failing else None,
        )

    def _choice(self, index: int, position: int, reason: Any) -> CompletionOutput:
        ids = [] if reason in ("error", "abort") else [answer_ids(index, position + 1)[-1]]
        wanted = self._params.logprobs
        return CompletionOutput(
            index=index,
            text="".join(WORDS[i] for i in ids),
            token_ids=ids,
            logprobs=None if wanted is None else [logprobs_of(i, wanted) for i in ids],
            finish_reason=reason,
        )

    @property
    def num_given(self) -> int:
        return self._position

    async def aclose(self) -> None:
        if not self.closed:
            self.closed = True
            self._service.open.discard(self)
            if not self.ended:
                self._service.aborted.append(self.request_id)


class FakeService(TextService):
    """Records requests; `delay` is seconds per token."""

    def __init__(self) -> None:
        self.max_model_len = MAX_MODEL_LEN
        self.words = FakeTokenizer()
        self.tokenizer: Any = self.words
        self.sampling: dict[str, float | int] = {}
        self.template: str | None = "{{ messages }}<tool_call>"
        self.delay = 0.0
        self.dead = False
        self.restarts = False
        self.aborting = False
        self.fail_at: int | None = None
        self.num_cached = 0
        self.queue_full = False
        self.expires = False
        self.num_resets = 0
        self.open: set[FakeStream] = set()
        self.aborted: list[str] = []
        self.requests: list[tuple[list[int], SamplingParams, dict[str, Any]]] = []
        self.conversations: list[tuple[list[Any], dict[str, Any]]] = []
        self.figures: EngineStats | None = None
        self._draining = False

    async def generate(self, prompt: Any, params: SamplingParams, **options: Any) -> FakeStream:
        problem = self.problem()
        if problem is not None:
            raise problem
        if self.queue_full:
            raise QueueFullError("the queue is full")
        tokens = self.words.encode(prompt) if isinstance(prompt, str) else prompt
        if prompt == "" or not tokens:
            raise InvalidRequestError("the prompt is empty", field="prompt")
        named = ("stop_token_ids", "allowed_token_ids", "logit_bias")
        for field, ids in [("prompt", tokens), *((name, getattr(params, name) or ()) for name in named)]:
            if any(not 0 <= token < VOCAB for token in ids):
                raise InvalidRequestError(f"{field}: not in the vocabulary", field=field)
        for field in ("logprobs", "prompt_logprobs"):
            if (getattr(params, field) or 0) > MAX_LOGPROBS:
                raise InvalidRequestError(f"{field} must be at most {MAX_LOGPROBS}", field=field)
        if len(tokens) >= MAX_MODEL_LEN:
            raise InvalidRequestError(f"the prompt has {len(tokens)} tokens, of {MAX_MODEL_LEN}", field="prompt")
        self.requests.append((tokens, params, options))
        stream = FakeStream(self, tokens, params, options["request_id"])
        stream.prompt = prompt if isinstance(prompt, str) else None
        self.open.add(stream)
        return stream

    async def beam_search(self, *args: Any, **options: Any) -> Any:
        raise InvalidRequestError("nothing is searched here", field="use_beam_search")

    async def chat_prompt(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> list[int]:
        checked_messages(messages)
        self.conversations.append((list(messages), options))
        contents = [message["content"] for message in messages]
        text = "".join(c if isinstance(c, str) else "".join(part["text"] for part in c or ()) for c in contents)
        return [*self.words.encode(text, add_special_tokens=False), 2]

    async def tokenize(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return self.words.encode(text, add_special_tokens=add_special_tokens)

    async def detokenize(self, ids: list[int]) -> str:
        if any(not 0 <= token < VOCAB for token in ids):
            raise InvalidRequestError("tokens: not in the vocabulary", field="tokens")
        return "".join(map(self.words.token_text, ids))

    @property
    def chat_template(self) -> str | None:
        return self.template

    def stats(self) -> EngineStats | None:
        return self.figures

    @property
    def healthy(self) -> bool:
        return not self.dead

    @property
    def alive(self) -> bool:
        return not self.dead or self.restarts

    def problem(self) -> OctavoError | None:
        if self._draining:
            return ShuttingDownError("the server is shutting down")
        if self.dead and self.restarts:
            return EngineStartingError("the engine is started again")
        return EngineDeadError("the engine is dead") if self.dead else None

    @property
    def draining(self) -> bool:
        return self._draining

    @property
    def num_open(self) -> int:
        return len(self.open)

    async def drain(self, timeout: float) -> bool:
        self._draining = True
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout
        while self.open and loop.time() < end:
            await asyncio.sleep(0.005)
        self.aborting = True
        return not self.open

    async def reset_prefix_cache(self) -> bool:
        self.num_resets += 1
        return True
