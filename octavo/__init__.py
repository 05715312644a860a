"""Octavo: a small, fast LLM inference and serving engine.

The public list, imported on first use: `import octavo` itself loads nothing heavy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from octavo.base.version import VERSION

if TYPE_CHECKING:
    from octavo.base.errors import OctavoError as OctavoError
    from octavo.config.engine import EngineConfig as EngineConfig
    from octavo.frontend.beams import BeamSearchParams as BeamSearchParams
    from octavo.frontend.intake import TextPrompt as TextPrompt
    from octavo.frontend.intake import TokensPrompt as TokensPrompt
    from octavo.frontend.vectors import EmbeddingRequestOutput as EmbeddingRequestOutput
    from octavo.frontend.vectors import PoolingRequestOutput as PoolingRequestOutput
    from octavo.llm import LLM as LLM
    from octavo.llm import AsyncLLM as AsyncLLM
    from octavo.protocol.output import CompletionOutput as CompletionOutput
    from octavo.protocol.output import Logprob as Logprob
    from octavo.protocol.output import RequestOutput as RequestOutput
    from octavo.protocol.pooling import PoolingParams as PoolingParams
    from octavo.protocol.sampling import RequestOutputKind as RequestOutputKind
    from octavo.protocol.sampling import SamplingParams as SamplingParams
    from octavo.protocol.structured import StructuredOutputsParams as StructuredOutputsParams


__version__ = VERSION

_PUBLIC = {
    "LLM": "octavo.llm",
    "AsyncLLM": "octavo.llm",
    "EngineConfig": "octavo.config.engine",
    "BeamSearchParams": "octavo.frontend.beams",
    "SamplingParams": "octavo.protocol.sampling",
    "StructuredOutputsParams": "octavo.protocol.structured",
    "PoolingParams": "octavo.protocol.pooling",
    "PoolingRequestOutput": "octavo.frontend.vectors",
    "EmbeddingRequestOutput": "octavo.frontend.vectors",
    "RequestOutputKind": "octavo.protocol.sampling",
    "RequestOutput": "octavo.protocol.output",
    "CompletionOutput": "octavo.protocol.output",
    "Logprob": "octavo.protocol.output",
    "TextPrompt": "octavo.frontend.intake",
    "TokensPrompt": "octavo.frontend.intake",
    "OctavoError": "octavo.base.errors",
}
__all__ = sorted(_PUBLIC)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'octavo' has no attribute {name!r}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
