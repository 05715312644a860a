"""The tensors of a GGUF file under their Hugging Face names, a few rows at a time: decoded, or as blocks if they stay packed."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from octavo.base.facts import ModelFacts
from octavo.checkpoint.gguf import GgufFile, GgufTensor, read_gguf
from octavo.checkpoint.gguf_facts import keeps_pairs_together, norms_hold_one
from octavo.ops.packed_product.blocks import PACKED, blocks_of_row, check_type, dequantize
from octavo.worker.loader.weights import Incoming, Target

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
# Where there are norms after attention and feed-forward too.
_SANDWICH = {
    "blk.{}.post_attention_norm": "model.layers.{}.post_attention_layernorm",
    "blk.{}.ffn_norm": "model.layers.{}.pre_feedforward_layernorm",
    "blk.{}.post_ffw_norm": "model.layers.{}.post_feedforward_layernorm",
}
# The divisors of stretched rotary frequencies: the facts were made from them.
_KNOWN = ("rope_freqs.weight",)
# Values decoded at a time.
_PIECE = 2**20


def gguf_kinds(path: str) -> dict[str, str]:
    """Return how tensors are stored ("Q4_K"), by their Hugging Face names."""
    file = read_gguf(path)
    sandwich = _sandwich(file)
    return {hugging_face_name(tensor.name, sandwich): tensor.type for tensor in file.tensors.values()}


def gguf_weights(path: str, facts: ModelFacts, targets: Mapping[str, Target]) -> Iterator[Incoming]:
    """Yield the tensors of a GGUF file and of its other parts; raises CheckpointError for a type that is not decoded.

    Where a target takes bytes, they are blocks [rows, blocks of a row, bytes of a block].
    """
    file = read_gguf(path)
    pairs_together, ones = keeps_pairs_together(file), norms_hold_one(file)
    for tensor in file.tensors.values():
        if tensor.name in _KNOWN:
            continue
        check_type(tensor.name, tensor.type)
        paired = pairs_together and re.fullmatch(r"blk\.\d+\.attn_[qk]\.(weight|bias)", tensor.name) is not None
        head_dim = facts.head_dim if paired else None
        name = hugging_face_name(tensor.name, _sandwich(file))
        target = targets.get(name)
        packed = target is not None and target.packed and tensor.type in PACKED
        incoming = replace(_incoming(tensor, file.data(tensor.name), head_dim, packed), name=name)
        yield _minus_one(incoming) if ones and tensor.name.endswith("norm.weight") else incoming


def _sandwich(file: GgufFile) -> bool:
    return "blk.0.post_ffw_norm.weight" in file.tensors


def hugging_face_name(name: str, sandwich: bool = False) -> str:
    """Return what a tensor is called in a Hugging Face checkpoint; its own name if it is not known."""
    names = _NAMES | _SANDWICH if sandwich else _NAMES
    module, _, suffix = name.rpartition(".")
    layer = re.search(r"\d+", module)
    pattern = module if layer is None else module.replace(layer[0], "{}", 1)
    if pattern not in names:
        return name
    return names[pattern].format(layer and layer[0]) + "." + suffix


def _incoming(tensor: GgufTensor, raw: memoryview, head_dim: int | None, packed: bool) -> Incoming:
    # A vector is one row, so that whole blocks are decoded.
    num_rows = tensor.shape[0] if len(tensor.shape) > 1 else 1
    row_bytes = tensor.nbytes // num_rows
    shape = (num_rows, *blocks_of_row(tensor.type, row_bytes)) if packed else tensor.shape
    # Rows of a head that have to be put in order come together.
    unit = (head_dim or 1) if num_rows > 1 else 1
    step = max(_PIECE // math.prod(shape[1:]) // unit, 1) * unit

    def rows(first: int, last: int) -> Tensor:
        piece = torch.frombuffer(bytearray(raw[first * row_bytes : last * row_bytes]), dtype=torch.uint8)
        values = (piece if packed else dequantize(tensor.type, piece)).view(-1, *shape[1:])
        return values if head_dim is None else halves_together(values, head_dim)

    def read(cut: tuple[slice, ...], into: Tensor) -> None:
        if num_rows == 1:
            into.copy_(rows(0, 1)[cut])
            return
        begin = (cut[0].start or 0) if cut else 0
        for first in range(0, into.shape[0], step):
            target = into[first : first + step]
            values = rows(begin + first, begin + first + target.shape[0])
            target.copy_(values[:, *cut[1:]])

    return Incoming(name=tensor.name, file=tensor.file, shape=shape, read=read)


def _minus_one(incoming: Incoming) -> Incoming:
    def read(cut: tuple[slice, ...], into: Tensor) -> None:
        wide = torch.empty_like(into, dtype=torch.float32)
        incoming.read(cut, wide)
        into.copy_(wide - 1)

    return replace(incoming, read=read)


def halves_together(rows: Tensor, head_dim: int) -> Tensor:
    """Undo the order of query and key rows that keeps the two rows of a rotated pair side by side in each head."""
    return rows.unflatten(0, (-1, head_dim // 2, 2)).transpose(1, 2).reshape(rows.shape)
