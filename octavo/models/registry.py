"""Which file implements an architecture. A model is one file and one row for each name it goes by."""

from __future__ import annotations

from octavo.base.errors import UnsupportedError
from octavo.base.naming import nearest
from octavo.base.plugins import extend
from octavo.base.registry import Registry

_ROWS = {
    "LlamaForCausalLM": "octavo.models.llama:LlamaForCausalLM",
    "MistralForCausalLM": "octavo.models.llama:LlamaForCausalLM",
    "Qwen3ForCausalLM": "octavo.models.qwen3:Qwen3ForCausalLM",
}


def models() -> Registry:
    """Return the registry of models, with those of other packages (entry points `octavo.models`)."""
    registry = Registry("model", _ROWS)
    extend(registry, "octavo.models")
    return registry


def load_model(architecture: str) -> type:
    """Return the class that implements an architecture; raises UnsupportedError for one that is not known."""
    registry = models()
    if architecture not in registry:
        guess = nearest(architecture, registry)
        raise UnsupportedError(
            f"architecture {architecture} is not supported" + (f"; the nearest that is: {guess}" if guess else ""),
            field="model",
        )
    return registry.load(architecture)
