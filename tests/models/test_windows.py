"""Which layers slide, by each architecture's own rule."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from octavo.checkpoint.config_keys import settle_extras
from octavo.checkpoint.hf_config import read_hf_facts
from octavo.models.registry import load_model
from octavo.nn.attention.layer import Attention
from tests.models.oracle import TINY

SFSF = ["sliding_attention", "full_attention"] * 2
SLIDES = {"sliding_window": 9, "use_sliding_window": True}


@pytest.mark.parametrize(
    ("name", "changes", "windows"),
    [
        ("Llama", {"sliding_window": 100}, [None] * 4),
        ("Mistral", {}, [4096] * 4),
        ("Mistral", {"sliding_window": 100}, [100] * 4),
        ("Mistral", {"sliding_window": None}, [None] * 4),
        ("Qwen3", {"sliding_window": 9}, [None] * 4),
        ("Qwen3", SLIDES | {"max_window_layers": 3}, [None, None, None, 9]),
        ("Qwen3", SLIDES, [None] * 4),
        ("Qwen3", SLIDES | {"sliding_window": None, "max_window_layers": 1}, [None] * 4),
        ("Qwen3", SLIDES | {"layer_types": SFSF}, [9, None] * 2),
        ("Qwen3", {"sliding_window": 9, "layer_types": SFSF}, [None] * 4),
    ],
)
def test_windows(tmp_path: Path, name: str, changes: dict[str, Any], windows: list[int | None]) -> None:
    config = {**TINY, "architectures": [f"{name}ForCausalLM"], "num_hidden_layers": 4, **changes}
    (tmp_path / "config.json").write_text(json.dumps(config))
    facts = read_hf_facts(tmp_path)
    with torch.device("meta"):
        model_class = load_model(facts.architecture)
        model = model_class(settle_extras(facts, model_class.config_keys))
    assert [module.window for module in model.modules() if isinstance(module, Attention)] == windows
