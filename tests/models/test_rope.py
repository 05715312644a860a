"""Cosines and sines of every kind of rotary embedding, as transformers has them, from the same configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Gemma3TextConfig, LlamaConfig, PhiConfig
from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.phi.modeling_phi import PhiRotaryEmbedding

from octavo.base.facts import ModelFacts, RopeFacts
from octavo.checkpoint.hf_config import read_hf_facts
from octavo.nn.rope import rope_table
from octavo.ops.rope_write.reference import rope

LONG = [1.0, 1.2, 2.0, 3.5, 5.0, 9.0, 17.0, 31.0]
SHORT = [1.0, 1.0, 1.05, 1.1, 1.2, 1.5, 2.0, 3.0]
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
KINDS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 3.0},
    "yarn": YARN,
    "yarn-mscale": YARN | {"mscale": 0.707, "mscale_all_dim": 1.2},
    "yarn-factor": YARN | {"attention_factor": 1.3, "beta_fast": 20.0, "beta_slow": 2.0},
    "yarn-whole": YARN | {"truncate": False},
    "yarn-short": YARN | {"original_max_position_embeddings": 5, "rope_theta": 40.0},
    "llama3": LLAMA3 | {"original_max_position_embeddings": 64},
    "longrope": {"rope_type": "longrope", "short_factor": SHORT, "long_factor": LONG, "factor": 8.0}
    | {"original_max_position_embeddings": 64},
    "longrope-factor": {"rope_type": "longrope", "short_factor": SHORT, "long_factor": LONG, "attention_factor": 1.19}
    | {"original_max_position_embeddings": 64},
}


def _facts(folder: Path, config: Any) -> ModelFacts:
    written = {**config.to_dict(), "architectures": ["LlamaForCausalLM"]}
    (folder / "config.json").write_text(json.dumps(written))
    return read_hf_facts(folder)


def _expected(rotary: Any, length: int, *kind: str) -> Tensor:
    cos, sin = rotary(torch.zeros(1), torch.arange(length)[None], *kind)
    half = cos.shape[-1] // 2
    return torch.cat((cos[0, :, :half], sin[0, :, :half]), -1)


# Up to the training's context, just beyond it, and all that the model says it has.
@pytest.mark.parametrize("length", [64, 65, 512, 777])
@pytest.mark.parametrize("kind", KINDS)
def test_tables(tmp_path: Path, kind: str, length: int) -> None:
    parameters = {"rope_theta": 1000.0, **KINDS[kind]}
    config = LlamaConfig(head_dim=16, max_position_embeddings=512, rope_parameters=parameters)
    expected = _expected(LlamaRotaryEmbedding(config), length)
    found = rope_table(_facts(tmp_path, config).rope, length)
    torch.testing.assert_close(found, expected, rtol=0, atol=5e-5)


def test_part_of_a_head(tmp_path: Path) -> None:
    config = PhiConfig(hidden_size=64, num_attention_heads=4, partial_rotary_factor=0.5)
    found = rope_table(_facts(tmp_path, config).rope, 100)
    assert found.shape == (100, 8)
    torch.testing.assert_close(found, _expected(PhiRotaryEmbedding(config), 100), rtol=0, atol=1e-6)


def test_each_kind_of_layer_has_its_own(tmp_path: Path) -> None:
    kinds = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    config = Gemma3TextConfig(head_dim=16, num_hidden_layers=6, rope_parameters=kinds)
    facts, rotary = _facts(tmp_path, config), Gemma3RotaryEmbedding(config)
    assert facts.sliding_rope is not None
    for found, kind in ((facts.rope, "full_attention"), (facts.sliding_rope, "sliding_attention")):
        torch.testing.assert_close(rope_table(found, 200), _expected(rotary, 200, kind), rtol=0, atol=1e-5)


@pytest.mark.parametrize("size", [8, 4])
def test_neighbours_are_pairs_if_interleaved(size: int) -> None:
    q, k, positions = torch.randn(5, 3, 8), torch.randn(5, 2, 8), torch.tensor([7, 0, 3, 3, 90])
    table = rope_table(RopeFacts(dim=size, theta=50.0), 91)
    expected = []
    for x in (q, k):
        pairs = torch.view_as_complex(x[..., :size].unflatten(-1, (-1, 2)).contiguous())
        cos, sin = table[positions].chunk(2, -1)
        turned = torch.view_as_real(pairs * torch.complex(cos, sin).unsqueeze(1)).flatten(-2)
        expected.append(torch.cat((turned, x[..., size:]), -1))
    rope(q, k, positions, table, interleaved=True)
    torch.testing.assert_close((q, k), tuple(expected))
