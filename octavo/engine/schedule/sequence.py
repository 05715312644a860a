"""A sequence: one choice of one request. The only mutable record of a request, and known to the scheduler alone."""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo.constrain.matcher import Matcher
from octavo.engine.kvcache.allocator import Holding
from octavo.protocol.arrays import Int32Array
from octavo.protocol.request import Request


@dataclass(slots=True, eq=False)
class Sequence:
    """One choice. order: its place in every queue, smaller first. slot: -1 while it waits.

    holding: what it holds, nothing but hashes while it waits. tokens: its history while it waits (a running sequence's lies
    in the slot table). children: choices that fork from it once its prompt is computed; parent: where a waiting choice
    forks from. num_cached: prompt tokens found in the cache.
    queued: whether it is in the queue, and not waiting for its parent.
    reserved: pages that the rest of its prefill will take. matcher: how far it has come in its grammar, if it has one.
    """

    request: Request
    choice: int
    order: tuple[int, int, int]
    tokens: Int32Array
    slot: int = -1
    holding: Holding | None = None
    matcher: Matcher | None = None
    parent: Sequence | None = None
    children: list[Sequence] = field(default_factory=list["Sequence"])
    num_cached: int = 0
    reserved: int = 0
    queued: bool = False
    started: bool = False
    ended: bool = False

    @property
    def num_prompt(self) -> int:
        """Tokens of the prompt."""
        return len(self.request.tokens)

    @property
    def num_encoder(self) -> int:
        """Tokens of the encoder's input."""
        return 0 if self.request.encoder_tokens is None else len(self.request.encoder_tokens)

    @property
    def computes_all(self) -> bool:
        """Whether the hidden states of the whole prompt are needed, so that nothing is read from the cache."""
        return self.request.pooling is not None or self.request.sampling.skip_reading_prefix_cache or self.scores

    @property
    def scores(self) -> bool:
        """Whether log-probabilities of its prompt are still to be given: once a request, before its first token."""
        asked = self.request.sampling.prompt_logprobs is not None
        return asked and self.choice == 0 and len(self.tokens) == self.num_prompt

    @property
    def limit(self) -> int:
        """Length of prompt and output at which it ends."""
        return self.num_prompt + self.request.max_tokens
