"""The tensors of a GGUF file under their Hugging Face names, decoded a few rows at a time."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import torch
from torch import Tensor

from octavo.base.facts import ModelFacts
from octavo.checkpoint.gguf import GgufTensor, read_gguf
from octavo.checkpoint.gguf_facts import keeps_pairs_together
from octavo.worker.loader.gguf_types import check_type, dequantize
from octavo.worker.loader.weights import Incoming

_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "blk.{}.attn_norm": "model.layers.{}.input_layernorm",
    "blk.{}.attn_q": "model.layers.{}.self_attn.q_proj",
    "blk.{}.attn_k": "model.layers.{}.self_attn.k_proj",
    "blk.{}.attn_v": "model.layers.{}.self_attn.v_proj",
    "blk.{}.attn_q_norm": "model.layers.{}.self_attn.q_norm",
    "blk.{}.attn_k_norm": "model.layers.{}.self_attn.k_norm",
    "blk.{}.attn_output": "model.layers.{}.self_attn.o_proj",
    "blk.{}.ffn_norm": "model.layers.{}.post_attention_layernorm",
    "blk.{}.ffn_gate": "model.layers.{}.mlp.gate_proj",
    "blk.{}.ffn_up": "model.layers.{}.mlp.up_proj",
    "blk.{}.ffn_down": "model.layers.{}.mlp.down_proj",
}
# The divisors of stretched rotary frequencies: the facts were made from them.
_KNOWN = ("rope_freqs.weight",)
# Values decoded at a time.
_PIECE = 2**20


def gguf_weights(path: str, facts: ModelFacts) -> Iterator[Incoming]:
    """Yield the tensors of a GGUF file; raises CheckpointError for a type that is not decoded."""
    file = read_gguf(path)
    pairs_together = keeps_pairs_together(file)
    for tensor in file.tensors.values():
        if tensor.name in _KNOWN:
            continue
        check_type(tensor.name, tensor.type)
        paired = pairs_together and re.fullmatch(r"blk\.\d+\.attn_[qk]\.(weight|bias)", tensor.name) is not None
        head_dim = facts.head_dim if paired else None
        yield _incoming(path, tensor, file.data(tensor.name), head_dim)


def hugging_face_name(name: str) -> str:
    """Return what a tensor is called in a Hugging Face checkpoint; its own name if it is not known."""
    module, _, suffix = name.rpartition(".")
    layer = re.search(r"\d+", module)
    pattern = module if layer is None else module.replace(layer[0], "{}", 1)
    if pattern not in _NAMES:
        return name
    return _NAMES[pattern].format(layer and layer[0]) + "." + suffix


def _incoming(path: str, tensor: GgufTensor, raw: memoryview, head_dim: int | None) -> Incoming:
    row = math.prod(tensor.shape[1:])
    row_bytes = tensor.nbytes // tensor.shape[0]

    def read(cut: tuple[slice, ...], into: Tensor) -> None:
        begin = (cut[0].start or 0) if cut else 0
        # Whole heads, where rows have to be put in order; whole blocks, where a row is a single value.
        unit = head_dim or min(32, into.shape[0])
        step = max(_PIECE // row // unit, 1) * unit
        for first in range(0, into.shape[0], step):
            target = into[first : first + step]
            piece = raw[(begin + first) * row_bytes : (begin + first + target.shape[0]) * row_bytes]
            values = dequantize(tensor.type, torch.frombuffer(bytearray(piece), dtype=torch.uint8))
            values = values.view(target.shape[0], *tensor.shape[1:])
            if head_dim is not None:
                values = halves_together(values, head_dim)
            target.copy_(values[:, *cut[1:]])

    return Incoming(name=hugging_face_name(tensor.name), file=path, shape=tensor.shape, read=read)


def halves_together(rows: Tensor, head_dim: int) -> Tensor:
    """Undo the order of query and key rows that keeps the two rows of a rotated pair side by side in each head."""
    return rows.unflatten(0, (-1, head_dim // 2, 2)).transpose(1, 2).reshape(rows.shape)
