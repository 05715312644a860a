"""A tiny llama on disk, written without torch. One of its tokens breaks the numbers of whoever's prompt holds it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import tokenizers
from safetensors.numpy import save_file
from tokenizers import models, pre_tokenizers

VOCAB, EOS, POISON = 151, 2, 13
_HIDDEN, _INNER, _HEADS, _KV_HEADS, _DIM, _LAYERS = 64, 96, 4, 2, 16, 2


def words(ids: list[int]) -> str:
    """Return the text of token ids."""
    return " ".join(f"<{index:03}>" for index in ids)


def save_tiny(folder: Path) -> Path:
    """Write the model and its tokenizer, whose every token is a word; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCAB,
        "hidden_size": _HIDDEN,
        "intermediate_size": _INNER,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _KV_HEADS,
        "head_dim": _DIM,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "eos_token_id": EOS,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config))
    save_file(_weights(), folder / "model.safetensors")
    core = tokenizers.Tokenizer(models.WordLevel({words([index]): index for index in range(VOCAB)}, words([0])))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    core.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text("{% for message in messages %}{{ message.content }} {% endfor %}")
    return folder


def _weights() -> dict[str, np.ndarray]:
    chance = np.random.default_rng(5)

    def draw(*shape: int) -> np.ndarray:
        return (0.3 * chance.standard_normal(shape)).astype(np.float32)

    weights = {"model.embed_tokens.weight": draw(VOCAB, _HIDDEN), "lm_head.weight": draw(VOCAB, _HIDDEN)}
    for layer in range(_LAYERS):
        rows = {"q_proj": _HEADS * _DIM, "k_proj": _KV_HEADS * _DIM, "v_proj": _KV_HEADS * _DIM}
        shapes = {f"self_attn.{name}": (size, _HIDDEN) for name, size in rows.items()}
        shapes |= {"self_attn.o_proj": (_HIDDEN, _HEADS * _DIM), "mlp.down_proj": (_HIDDEN, _INNER)}
        shapes |= {"mlp.gate_proj": (_INNER, _HIDDEN), "mlp.up_proj": (_INNER, _HIDDEN)}
        weights |= {f"model.layers.{layer}.{name}.weight": draw(*shape) for name, shape in shapes.items()}
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"model.layers.{layer}.{name}.weight"] = 1 + draw(_HIDDEN)
    weights["model.norm.weight"] = 1 + draw(_HIDDEN)
    # Its hidden state is no number; no answer holds it.
    weights["model.embed_tokens.weight"][POISON] = np.nan
    weights["lm_head.weight"][POISON] = 0.0
    return weights
