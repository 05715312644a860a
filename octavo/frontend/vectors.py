"""What comes back from a request for a vector."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from octavo.engine.streams import ChoiceNews
from octavo.protocol.arrays import Float32Array
from octavo.protocol.pooling import PoolingParams
from octavo.protocol.request import FinishChoice, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingOutput:
    """A vector. data: float32 [hidden_size]."""

    data: Float32Array


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingRequestOutput:
    """The answer to a request for a vector. outputs: empty if it failed, and `error` says why."""

    request_id: str
    outputs: PoolingOutput
    prompt_token_ids: list[int]
    num_cached_tokens: int = 0
    finished: bool = True
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingOutput:
    """An embedding, as numbers of Python."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        """Numbers in the embedding."""
        return len(self.embedding)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingRequestOutput:
    """The answer to a request for an embedding. outputs: empty if it failed, and `error` says why."""

    request_id: str
    outputs: EmbeddingOutput
    prompt_token_ids: list[int]
    num_cached_tokens: int = 0
    finished: bool = True
    error: str | None = None

    @staticmethod
    def from_base(output: PoolingRequestOutput) -> EmbeddingRequestOutput:
        """Return the same answer with its vector as a list."""
        return EmbeddingRequestOutput(
            request_id=output.request_id,
            outputs=EmbeddingOutput(embedding=output.outputs.data.tolist()),
            prompt_token_ids=output.prompt_token_ids,
            finished=output.finished,
            error=output.error,
        )


class VectorCollector:
    """The state of one request for a vector, with the methods of `Collector`."""

    def __init__(self, request: Request, params: PoolingParams, *, request_id: str) -> None:
        self.finishes: list[FinishChoice] = []
        self.request_id = request_id
        self.prompt: str | None = None
        self.prompt_token_ids: list[int] = request.tokens.tolist()
        self.started = False
        self.finished = False
        self._params = params
        self._vector = np.zeros(0, np.float32)

    def take(self, news: Mapping[int, ChoiceNews]) -> PoolingRequestOutput | None:
        """Take news; return the answer when it is complete."""
        one = news.get(0)
        if one is None:
            return None
        self.started = True
        if one.vector is not None:
            self._vector = self._shortened(one.vector)
        return None if one.finish is None else self._end(one.finish.message or None)

    def abort(self) -> PoolingRequestOutput:
        """End the request; return the answer that there is."""
        return self._end("the request was aborted")

    def _end(self, error: str | None) -> PoolingRequestOutput:
        self.finished = True
        return PoolingRequestOutput(
            request_id=self.request_id,
            outputs=PoolingOutput(data=self._vector),
            prompt_token_ids=self.prompt_token_ids,
            error=error,
        )

    def _shortened(self, vector: Float32Array) -> Float32Array:
        """Keep the first numbers, of models that were trained for it, at length 1 if that was asked for."""
        dimensions = self._params.dimensions
        if dimensions is None or dimensions == len(vector):
            return vector
        short = vector[:dimensions]
        return short / max(float(np.linalg.norm(short)), 1e-12) if self._params.normalize else short
