"""Grammars at work: compiled on a thread of their own, kept by their text, and followed token by token.

Shapes: V vocabulary, W = 4 * ceil(V / 32) bytes of one bit a token, m masks.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from octavo.base.errors import InvalidRequestError
from octavo.protocol.arrays import Uint8Array

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
    """How far one answer has come in its grammar. num_seen: tokens of the output that it has taken."""

    def __init__(self, core: Any, vocabulary: Vocabulary) -> None:
        self.core = core
        self.num_seen = 0
        self._vocabulary = vocabulary

    def start(self) -> Matcher:
        """Return where another answer begins."""
        return Matcher(self.core.deep_copy(), self._vocabulary)

    @property
    def ended(self) -> bool:
        """Whether nothing can follow."""
        return self.core.is_stopped()

    def accept(self, ids: Sequence[int]) -> str:
        """Take the next tokens; returns what is wrong with them, "" if nothing is."""
        self.num_seen += len(ids)
        if self.core.consume_tokens(list(ids)) and not self.core.is_error():
            return ""
        return f"the grammar cannot go on: {self.core.get_error().splitlines()[0]}"

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

    def masks(self, asked: Sequence[tuple[Matcher, Sequence[int]]]) -> Uint8Array:
        """Return which tokens may come next, uint8 [m, W]. asked: m matchers, and ids that end the answer where it may end."""
        assert self._vocabulary is not None
        width = -(-self._vocabulary.num_ids // 32) * 4
        bits = np.empty((len(asked), width), np.uint8)
        parallel = self._parallel if len(asked) >= _LEAST_PARALLEL else None
        if parallel is not None:
            numbered = [(matcher.core, index) for index, (matcher, _) in enumerate(asked)]
            parallel.unsafe_compute_mask_ptr(numbered, bits.ctypes.data, width, len(asked))
        for row, (matcher, stop_ids) in zip(bits, asked, strict=True):
            if parallel is None:
                matcher.core.unsafe_compute_mask_ptr(row.ctypes.data, width)
            if matcher.core.is_error():
                row[:] = 0  # What failed lets an answer end as if it were whole.
            matcher.free_ends(row, stop_ids)
        return bits

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
