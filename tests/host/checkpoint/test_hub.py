"""Hub names: what is needed is fetched, the cache works alone, and what cannot be had is said at once."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from octavo.base.errors import CheckpointError
from octavo.checkpoint.open import open_checkpoint
from octavo.checkpoint.record import Checkpoint
from octavo.config.model import ModelConfig
from tests.host.checkpoint.fake_hub import FakeHub, commit
from tests.host.checkpoint.gguf_writer import embedding, gguf, llama_metadata
from tests.host.checkpoint.test_hf_config import BASE

WEIGHTS = save({"x": np.zeros((2, 2), np.float16)})
FOLDER = {"config.json": json.dumps(BASE).encode(), "tokenizer.json": b"{}", "chat_template.jinja": b"hub's"}
GGUF = gguf(llama_metadata(), [embedding()])
REPOSITORIES: dict[str, dict[str, Any]] = {
    "org/some.model": {
        "main": FOLDER
        | {
            "model.safetensors": WEIGHTS,
            "pytorch_model.bin": b"old",
            "consolidated.safetensors": b"twice",
            "onnx/model.safetensors": b"foreign",
            "README.md": b"words",
        },
        "older": FOLDER | {"model.safetensors": WEIGHTS, "chat_template.jinja": b"older"},
    },
    "org/pickled": {"main": FOLDER | {"pytorch_model.bin": b"pickled"}},
    "org/quantized": {
        "main": {
            "m.Q4_K_M.gguf": GGUF,
            "m.Q8_0.gguf": GGUF,
            "BF16/m.BF16-00001-of-00002.gguf": gguf(
                llama_metadata() | {"split.count": 2, "split.no": 0}, [embedding()]
            ),
            "BF16/m.BF16-00002-of-00002.gguf": gguf({"split.count": 2, "split.no": 1}),
        }
    },
}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub, an empty cache, and a working folder without models."""
    with FakeHub(REPOSITORIES).serving() as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.chdir(tmp_path)
        yield running


def opened(model: str, **options: Any) -> Checkpoint:
    return open_checkpoint(ModelConfig(model=model, **options))


def fetched(checkpoint: Checkpoint) -> set[str]:
    folder = Path(checkpoint.path)
    folder = folder if folder.is_dir() else folder.parent
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_what_is_needed_is_fetched(hub: FakeHub, tmp_path: Path):
    found = opened("org/some.model")
    assert (found.name, found.kind, found.chat_template) == ("org/some.model", "safetensors", "hub's")
    assert found.path.startswith(str(tmp_path / "cache"))
    assert Path(found.path).name == commit("org/some.model", "main")
    assert fetched(found) == {*FOLDER, "model.safetensors"}


def test_weights_of_other_kinds(hub: FakeHub):
    assert fetched(opened("org/some.model", load_format="dummy")) == {*FOLDER}
    assert fetched(opened("org/pickled")) == {*FOLDER, "pytorch_model.bin"}
    assert fetched(opened("org/some.model", load_format="pt")) == {*FOLDER, "pytorch_model.bin"}


def test_a_revision(hub: FakeHub):
    for revision in ("older", commit("org/some.model", "older")):
        assert opened("org/some.model", revision=revision).chat_template == "older"
    with pytest.raises(CheckpointError, match=r"no model 'org/some.model' of revision 'none'"):
        opened("org/some.model", revision="none")


def test_one_of_many_gguf_files(hub: FakeHub):
    found = opened("org/quantized:q4_k_m")
    assert (found.kind, Path(found.path).name, fetched(found)) == ("gguf", "m.Q4_K_M.gguf", {"m.Q4_K_M.gguf"})
    assert [Path(file).name for file in opened("org/quantized:BF16").files] == [
        "m.BF16-00001-of-00002.gguf",
        "m.BF16-00002-of-00002.gguf",
    ]
    with pytest.raises(
        CheckpointError, match=r"holds 3 \.gguf files \(.*m\.Q8_0\.gguf\); say which .* org/quantized:Q4"
    ):
        opened("org/quantized")
    with pytest.raises(CheckpointError, match=r"holds no \.gguf file with 'Q2_K' in its name"):
        opened("org/quantized:Q2_K")


def test_the_cache_is_enough(hub: FakeHub, monkeypatch: pytest.MonkeyPatch):
    names = ("org/some.model", "org/pickled", "org/quantized:Q8_0")
    online = [opened(name) for name in names]
    asked = len(hub.asked)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert [opened(name) for name in names] == online
    assert len(hub.asked) == asked
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert [opened(name) for name in names] == online


@pytest.mark.parametrize("endpoint", [None, "http://127.0.0.1:9"])
@pytest.mark.parametrize("name", ["org/missing", "org/missing:Q4_0"])
def test_what_cannot_be_had_is_said_at_once(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, endpoint: str | None, name: str
):
    if endpoint is not None:
        monkeypatch.setenv("HF_ENDPOINT", endpoint)
    began = time.monotonic()
    with pytest.raises(
        CheckpointError, match=r"no model 'org/missing': http://127.0.0.1:.* does not give it, and the local"
    ):
        opened(name)
    assert time.monotonic() - began < 5
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(
        CheckpointError, match=r"HF_HUB_OFFLINE forbids to ask the hub, and the local cache .* lacks it"
    ):
        opened(name)


def test_the_token_is_brought(hub: FakeHub, monkeypatch: pytest.MonkeyPatch):
    hub.token = "secret"
    with pytest.raises(CheckpointError, match="does not give it"):
        opened("org/some.model")
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert opened("org/some.model").kind == "safetensors"


def test_a_tokenizer_by_its_hub_name(hub: FakeHub):
    found = opened("org/quantized:Q8_0", tokenizer="org/some.model", revision=commit("org/quantized", "main"))
    assert found.chat_template == "hub's"
    assert found.tokenizer is not None
    assert Path(found.tokenizer).name == commit("org/some.model", "main")
    assert not [path for path in hub.asked if path.endswith(".safetensors")]


def test_what_is_on_this_machine_never_asks_the_hub(hub: FakeHub, tmp_path: Path):
    folder = tmp_path / "org" / "some.model"
    folder.mkdir(parents=True)
    for name, raw in (FOLDER | {"model.safetensors": WEIGHTS}).items():
        (folder / name).write_bytes(raw)
    assert opened("org/some.model", revision="older").path == str(folder)
    assert hub.asked == []


def test_a_local_model_does_not_import_the_hubs_client(demo_gguf: Path):
    program = (
        "import sys; sys.modules['huggingface_hub'] = None\n"
        "from octavo.checkpoint.open import open_checkpoint\n"
        "from octavo.config.model import ModelConfig\n"
        f"open_checkpoint(ModelConfig(model={str(demo_gguf)!r}))\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
