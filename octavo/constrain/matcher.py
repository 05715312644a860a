"""Grammars at work: compiled on a thread of their own, kept by their text, and followed token by token.

Shapes: V vocabulary, W = 4 * ceil(V / 32) bytes of one bit a token, m masks.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from octavo.base.errors import InvalidRequestError
from octavo.protocol.arrays import Int32Array, Uint8Array

# Compiled grammars that are kept, last used last: a few MB each at most.
_MAX_KEPT = 256
# Below, threads cost more than they save.
_LEAST_PARALLEL = 4


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """What tokens mean, in llguidance's words. tokens: bytes of each id; num_ids: V, of the model, which may have more.

    special_token_ids: those that are no text. ends: ids that end an answer. No text is ever cut into tokens: grammars say
    `no_forcing`.
    """

    tokens: Sequence[bytes]
    special_token_ids: Sequence[int]
    ends: Sequence[int]
    num_ids: int
    eos_token_id: int
    bos_token_id: int | None = None

    def __call__(self, _text: bytes) -> list[int]:
        """Return nothing."""
        return []


class Matcher:
    """How far one answer has come in its grammar. num_seen: tokens of the output that it has taken.

    drafts: what is proposed to follow, for masks to be had of it in one step.
    """

    def __init__(self, core: Any, vocabulary: Vocabulary) -> None:
        self.core = core
        self.num_seen = 0
        self.drafts: Sequence[int] = ()
        self._vocabulary = vocabulary

    def start(self) -> Matcher:
        """Return where another answer begins."""
        return Matcher(self.core.deep_copy(), self._vocabulary)

    @property
    def ended(self) -> bool:
        """Whether nothing can follow."""
        return self.core.is_stopped()

    def accept(self, ids: Sequence[int]) -> str:
        """Take the next tokens up to where nothing can follow; returns what is wrong with them, "" if nothing is."""
        for index in ids:
            if self.ended:
                break
            self.core.consume_token(index)
            self.num_seen += 1
        return f"the grammar cannot go on: {self.core.get_error().splitlines()[0]}" if self.core.is_error() else ""

    def along(self, drafts: Sequence[int]) -> Iterator[int]:
        """Yield 0, and after each draft that may come and be followed how many have; then go back to where it was."""
        taken, more = 0, True
        while more:
            yield taken
            more = taken < len(drafts) and self.core.try_consume_tokens([drafts[taken]]) == 1
            taken += more
            more = more and not self.ended
        self.core.rollback(taken)

    def free_ends(self, bits: Uint8Array, stop_ids: Sequence[int]) -> None:
        """Where an answer may end, let all of `stop_ids` end it, and no other if anything else may come. bits: uint8 [W]."""
        ends, size = self._vocabulary.ends, self._vocabulary.num_ids
        if not any(bits[end >> 3] >> (end & 7) & 1 for end in ends):
            return
        before = bits.copy()
        for end in ends:
            bits[end >> 3] &= ~(1 << (end & 7)) & 255
        for stop in stop_ids:
            bits[stop >> 3] |= (1 << (stop & 7)) if stop < size else 0
        if not bits.any():
            bits[:] = before


# An answer, ids that end it where it may end, and drafts of which masks are to be had as well.
_Asked = tuple[Matcher, Sequence[int], Sequence[int]]


class Grammars:
    """All grammars of an engine. load: reads the vocabulary, when the first grammar comes."""

    def __init__(self, load: Callable[[], Vocabulary]) -> None:
        self._load = load
        self._kept: OrderedDict[str, Future[Matcher]] = OrderedDict()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        self._vocabulary: Vocabulary | None = None
        self._tokenizer: Any = None
        self._parallel: Any = None

    def compile(self, text: str) -> Future[Matcher]:
        """Return the grammar of a text, when it is compiled; raises InvalidRequestError there if it is none."""
        found = self._kept.pop(text, None) or self._thread.submit(self._compile, text)
        self._kept[text] = found
        if len(self._kept) > _MAX_KEPT:
            self._kept.popitem(last=False)
        return found

    def masks(self, asked: Sequence[_Asked]) -> tuple[Int32Array, Int32Array, Uint8Array]:
        """Return which tokens may come next, and behind each draft that may: of m masks int32 [m], of which answer; int32
        [m], behind how many drafts; uint8 [m, W].
        """
        assert self._vocabulary is not None
        width = -(-self._vocabulary.num_ids // 32) * 4
        bits = np.empty((sum(1 + len(drafts) for *_, drafts in asked), width), np.uint8)
        parallel = self._parallel if len(asked) >= _LEAST_PARALLEL else None
        if parallel is not None:
            numbered = [(matcher.core, index) for index, (matcher, *_) in enumerate(asked)]
            parallel.unsafe_compute_mask_ptr(numbered, bits.ctypes.data, width, len(asked))
        places = [(index, 0) for index in range(len(asked))]
        for index, (matcher, stop_ids, drafts) in enumerate(asked):
            for number in matcher.along(drafts):
                row = bits[len(places) if number else index]
                if number:
                    places.append((index, number))
                if number or parallel is None:
                    matcher.core.unsafe_compute_mask_ptr(row.ctypes.data, width)
                if matcher.core.is_error():
                    row[:] = 0  # What failed lets an answer end as if it were whole.
                matcher.free_ends(row, stop_ids)
        owners, numbers = np.array(places, np.int32).reshape(-1, 2).T
        return owners, numbers, bits[: len(places)]

    def close(self) -> None:
        """End the thread; idempotent."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _compile(self, text: str) -> Matcher:
        import llguidance

        if self._vocabulary is None or self._tokenizer is None:
            self._vocabulary = self._load()
            tokens = llguidance.TokenizerWrapper(self._vocabulary)
            ends = list(self._vocabulary.ends)
            self._tokenizer = llguidance.LLTokenizer(tokens, n_vocab=self._vocabulary.num_ids, eos_token=ends)
            if (os.cpu_count() or 1) > _LEAST_PARALLEL:
                self._parallel = llguidance.LLExecutor()
        core = llguidance.LLMatcher(self._tokenizer, text, log_level=0, limits=limits())
        if core.is_error():
            raise InvalidRequestError(f"not a grammar: {core.get_error().splitlines()[0]}", field="structured_outputs")
        return Matcher(core, self._vocabulary)


def limits() -> Any:
    """Return what compiling a grammar, and a step in it, may cost: they end by themselves, in about a second at worst."""
    import llguidance

    return llguidance.LLParserLimits(max_grammar_size=200_000, initial_lexer_fuel=5_000_000, verbose_errors=False)
