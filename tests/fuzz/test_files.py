"""Files of models, damaged anywhere: read, or refused by an error of ours, soon."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given

from octavo.base.errors import OctavoError
from octavo.checkpoint.open import open_checkpoint
from octavo.checkpoint.shards import weights_dtype
from octavo.config.model import ModelConfig
from octavo.frontend.text.tokenizer import load_tokenizer
from octavo.worker.loader.weights import safetensors_weights
from tests.faults.tiny import save_tiny
from tests.fuzz.mutation import changed_bytes, changed_json, fuzz
from tests.host.checkpoint.gguf_writer import embedding, gguf, llama_metadata

# What a damaged file may take, and more than it does on a machine that is busy.
SECONDS = 5.0
# A vocabulary of bytes, as a GGUF file of a llama carries it.
PIECES = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁a", "b"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("fuzz") / "tiny")


def refused(read: Callable[[], Any]) -> bool:
    """Return whether reading ended in an error of ours; any other is a failure."""
    began = time.monotonic()
    try:
        read()
    except OctavoError:
        return True
    finally:
        assert time.monotonic() - began < SECONDS
    return False


def open_all(path: Path) -> None:
    """Read what a server reads of a model before its weights."""
    checkpoint = open_checkpoint(ModelConfig(model=str(path)))
    if checkpoint.tokenizer is not None:
        load_tokenizer(checkpoint.tokenizer)


def read_weights(path: Path) -> None:
    """Read every tensor of a safetensors file."""
    weights_dtype(str(path))
    for incoming in safetensors_weights([str(path)]):
        if 0 < torch.Size(incoming.shape).numel() < 2**20:
            incoming.read((), torch.empty(incoming.shape))


def test_weights(folder: Path, tmp_path: Path) -> None:
    data = (folder / "model.safetensors").read_bytes()
    # The header and a few of its numbers.
    head = int.from_bytes(data[:8], "little") + 8
    damaged, counts = tmp_path / "model.safetensors", [0, 0]

    @fuzz(150)
    @given(changed_bytes(data[:head]))
    def check(changed: bytes) -> None:
        damaged.write_bytes(changed + data[head:])
        counts[refused(lambda: read_weights(damaged))] += 1

    check()
    assert counts[True] > 50


HEADERS: dict[str, Any] = {
    "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
    "__metadata__": {"format": "pt"},
}


def test_headers_of_weights(tmp_path: Path) -> None:
    damaged, counts = tmp_path / "model.safetensors", [0, 0]

    @fuzz(150)
    @given(changed_json(HEADERS))
    def check(header: Any) -> None:
        text = json.dumps(header).encode()
        damaged.write_bytes(len(text).to_bytes(8, "little") + text + bytes(24))
        counts[refused(lambda: read_weights(damaged))] += 1

    check()
    assert counts[True] > 50


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"])
def test_descriptions(folder: Path, tmp_path: Path, name: str) -> None:
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    examples = {
        "tokenizer_config.json": {
            "bos_token": "<001>",
            "eos_token": {"content": "<002>", "lstrip": False},
            "chat_template": "{{ messages }}",
            "added_tokens_decoder": {"1": {"content": "<001>", "special": True}},
            "tokenizer_class": "PreTrainedTokenizerFast",
        },
        "generation_config.json": {"eos_token_id": [2, 3], "temperature": 0.6, "top_k": 20, "do_sample": True},
    }
    example = examples.get(name) or json.loads((folder / name).read_text())
    counts = [0, 0]

    @fuzz(60)
    @given(changed_json(example))
    def check(changed: Any) -> None:
        (tmp_path / name).write_text(json.dumps(changed))
        counts[refused(lambda: open_all(tmp_path))] += 1

    check()
    assert counts[True] > 3
    (tmp_path / name).write_text(json.dumps(example))
    open_all(tmp_path)


def test_an_index_of_shards(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    (tmp_path / "model-1.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    example = {"metadata": {"total_size": 5}, "weight_map": {"a": "model-1.safetensors", "b": "model-1.safetensors"}}
    outside = tmp_path.parent / "outside.safetensors"
    outside.write_bytes(b"no business of a model's")

    @fuzz(60)
    @given(changed_json(example))
    def check(changed: Any) -> None:
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(changed))
        try:
            files = open_checkpoint(ModelConfig(model=str(tmp_path))).files
        except OctavoError:
            return
        assert {str(Path(file).parent) for file in files} <= {str(tmp_path)}

    check()
    for name in ("../outside.safetensors", str(outside), "/etc/passwd"):
        example["weight_map"] = {"a": name}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(example))
        with pytest.raises(OctavoError, match="in the same folder"):
            open_checkpoint(ModelConfig(model=str(tmp_path)))


def test_gguf(tmp_path: Path) -> None:
    scores, kinds = [0.0] * len(PIECES), [2, 3, 3, *[6] * 256, 1, 1]
    vocabulary = {"model": "llama", "tokens": PIECES, "scores": scores, "token_type": kinds}
    given_keys = {f"tokenizer__ggml__{name}": value for name, value in vocabulary.items()}
    data = gguf(llama_metadata(**given_keys), [embedding()])
    damaged, counts = tmp_path / "model.gguf", [0, 0]
    damaged.write_bytes(data)
    open_all(damaged)

    @fuzz(150)
    @given(changed_bytes(data))
    def check(changed: bytes) -> None:
        damaged.write_bytes(changed)
        counts[refused(lambda: open_all(damaged))] += 1

    check()
    assert counts[True] > 50
