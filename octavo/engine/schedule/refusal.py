"""What an engine can never do, said at once."""

from __future__ import annotations

from octavo.engine.kvcache.geometry import Geometry
from octavo.engine.schedule.limits import ScheduleLimits
from octavo.protocol.request import Request


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
