"""What bounds a step, and what an engine can never do, said at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from octavo.engine.kvcache.geometry import Geometry
from octavo.protocol.request import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleLimits:
    """Settled limits of one engine.

    depth: plans in flight (1 synchronous, 2 one step ahead, pipeline stages + 1). tokens_per_step: what a row may yield at
    most in one step, 1 without speculation. generates: whether the model has a head, or gives vectors only. identity: names
    the model and its weights in persistent prefix keys. least_shared: tokens that a step must read less for rows to be told
    that they share a span; 0 for never.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    policy: Literal["fcfs", "priority"] = "fcfs"
    enable_prefix_caching: bool = True
    depth: int = 2
    tokens_per_step: int = 1
    generates: bool = True
    identity: str = ""
    least_shared: int = 2**14

    @property
    def stages(self) -> int:
        """Pipeline stages. Decodes are spread over as many plans, so that no stage waits for another's."""
        return max(1, self.depth - 1)

    @property
    def plans_per_sequence(self) -> int:
        """Plans in flight that one sequence may be in: two, or one a round where stages pass plans along."""
        return self.depth if self.depth <= 2 else 1


def refusal(request: Request, limits: ScheduleLimits, geometry: Geometry, num_pages: int) -> str | None:
    """Return why a request can never be served, None if it can."""
    total = len(request.tokens) + request.max_tokens
    encoder = 0 if request.encoder_tokens is None else len(request.encoder_tokens)
    if max(total, encoder) > limits.max_model_len:
        return f"prompt and output take {max(total, encoder)} tokens; the context has {limits.max_model_len}"
    problem = _wrong_kind(request, limits, geometry)
    if problem is not None:
        return problem
    # What is computed in one step whatever its length: the input of a vector, or of the encoder and a token beside it.
    once, most = total if request.pooling is not None else encoder and encoder + 1, limits.max_num_batched_tokens
    if once > most:
        return f"{once} tokens have to be computed in one step, more than max_num_batched_tokens, {most}"
    pages = geometry.pages_of(total, encoder) if request.pooling is None else geometry.pages_at_once(total)
    if pages > num_pages:
        return f"prompt and output ({total} tokens) take {pages} pages; the pool has {num_pages}"
    return None


def _wrong_kind(request: Request, limits: ScheduleLimits, geometry: Geometry) -> str | None:
    """Return what the request asks for that this kind of model does not do."""
    if request.pooling is None and not limits.generates:
        return "this model gives vectors; it does not generate text"
    if request.pooling is not None and geometry.has_encoder:
        return "this model generates text; it does not give vectors"
    if bool(geometry.has_encoder) != (request.encoder_tokens is not None and len(request.encoder_tokens) > 0):
        return "this model has no encoder" if not geometry.has_encoder else "this model needs an input for its encoder"
    return None
