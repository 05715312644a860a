"""Weights that do not fit are refused with the tensor's name; what fits is complete, wherever it lies."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from octavo.base.errors import CheckpointError, ConfigError, UnsupportedError
from octavo.checkpoint.open import open_checkpoint
from octavo.config.model import ModelConfig
from octavo.models.registry import load_model
from octavo.worker.loader.assemble import assemble
from octavo.worker.spec import Weights
from tests.fake_device import fake_device
from tests.models.oracle import assemble_folder, make_oracle, oracle_logits, random_tokens
from tests.models.paged_run import PagedRun

UP = "model.layers.1.mlp.up_proj.weight"


def _saved(path: Path, change: Callable[[dict[str, Tensor]], None], *, tied: bool = False) -> Path:
    make_oracle("llama", {"tie_word_embeddings": tied}).save_pretrained(path)
    tensors = load_file(path / "model.safetensors")
    change(tensors)
    save_file(tensors, path / "model.safetensors")
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop(UP), rf"tensors are missing: {UP}$"),
        (lambda t: t.pop("lm_head.weight"), r"tensors are missing: lm_head\.weight$"),
        (
            lambda t: t.update({UP: t[UP][:-1].clone()}),
            rf"tensor {UP} is \[79, 48\], but the config asks for \[80, 48\]",
        ),
        (
            lambda t: t.update({UP: t[UP].T.contiguous()}),
            rf"tensor {UP} is \[48, 80\], but the config asks for \[80, 48\]",
        ),
        (
            lambda t: t.update({"model.layers.0.mlp.up_proj.bias": torch.ones(80)}),
            r"model\.layers\.0\.mlp\.up_proj\.bias is not one of",
        ),
        (
            lambda t: t.update({"model.layers.3.mlp.up_proj.weight": t[UP].clone()}),
            r"model\.layers\.3\.mlp\.up_proj\.weight is not one of",
        ),
        (
            lambda t: t.update({UP: t[UP].to(torch.int8)}),
            rf"tensor {UP} is of type I8; Octavo reads F64, F32, F16, BF16",
        ),
    ],
)
def test_tensors_that_do_not_fit(tmp_path: Path, change: Callable[[dict[str, Tensor]], None], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        assemble_folder(_saved(tmp_path, change))


def test_many_missing_tensors_are_counted(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"missing: .* and 25 more$"):
        assemble_folder(_saved(tmp_path, lambda tensors: [tensors.pop(name) for name in list(tensors)[:-1]]))


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = _saved(tmp_path, lambda tensors: None)
    checkpoint = open_checkpoint(ModelConfig(model=str(path), skip_tokenizer_init=True))
    (path / "model.safetensors").write_bytes((path / "model.safetensors").read_bytes()[:-7])
    with pytest.raises(CheckpointError, match=r"model\.safetensors: cannot be read"):
        assemble(checkpoint, dtype="float32", device=fake_device(), max_model_len=64)


def test_harmless_tensors_and_a_tied_head_are_let_pass(tmp_path: Path) -> None:
    def add(tensors: dict[str, Tensor]) -> None:
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
        tensors["lm_head.weight"] = torch.full_like(tensors["model.embed_tokens.weight"], 7.0)

    path, tokens = _saved(tmp_path, add, tied=True), random_tokens(12)
    expected = oracle_logits(make_oracle("llama", {"tie_word_embeddings": True}), tokens)
    torch.testing.assert_close(
        PagedRun(assemble_folder(path)).prefill_and_decode(tokens, [12]), expected, rtol=1e-4, atol=1e-3
    )


def test_shards_and_other_dtypes(tmp_path: Path) -> None:
    oracle = make_oracle("llama", {"tie_word_embeddings": False})
    for parameter in oracle.parameters():
        parameter.data = parameter.data.to(torch.bfloat16)
    oracle.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 3
    tokens = random_tokens(12)
    found = PagedRun(assemble_folder(tmp_path)).prefill_and_decode(tokens, [12])
    torch.testing.assert_close(found, oracle_logits(oracle.float(), tokens), rtol=1e-4, atol=1e-3)


def test_dummy_weights(tmp_path: Path) -> None:
    make_oracle("qwen3", {"attention_bias": True}).config.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": ["Qwen3ForCausalLM"]}))
    checkpoint = open_checkpoint(ModelConfig(model=str(tmp_path), skip_tokenizer_init=True, load_format="dummy"))
    tokens, before = random_tokens(30), torch.random.get_rng_state()

    def logits(seed: int) -> Tensor:
        made = assemble(
            checkpoint,
            dtype="float32",
            device=fake_device(),
            max_model_len=64,
            weights=Weights(load_format="dummy", seed=seed),
        )
        return PagedRun(made).prefill_and_decode(tokens, [30])

    first = logits(5)
    assert torch.isfinite(first).all()
    assert 0.2 < first.std() < 5
    assert torch.equal(first, logits(5))
    assert not torch.allclose(first, logits(6), atol=0.1)
    assert torch.equal(before, torch.random.get_rng_state()), "the global generator was used"
    with pytest.raises(CheckpointError, match="holds no weights; load_format dummy"):
        assemble(checkpoint, dtype="float32", device=fake_device(), max_model_len=64)
    with pytest.raises(ConfigError, match="load_format is gguf"):
        assemble(
            checkpoint, dtype="float32", device=fake_device(), max_model_len=64, weights=Weights(load_format="gguf")
        )


def test_decisions_and_overrides(tmp_path: Path) -> None:
    made = assemble_folder(_saved(tmp_path, lambda tensors: None), overrides={"rope": "torch", "attention": "torch"})
    assert "rope torch: asked for" in made.decisions
    assert "causal_conv torch: triton needs a device of cuda, not cpu" in made.decisions
    assert "attention of heads of 8: torch, asked for" in made.decisions
    assert [layer.layer for layer in made.layers] == [0, 1, 2]
    assert [plane.name for plane in made.layers[0].kept.planes] == ["key", "value"]
    assert made.layers[0].kept.bytes_per_token == 2 * 2 * 8 * 4
    assert made.layers[0].blocks == (16, 32, 64, 128)
    with pytest.raises(ConfigError, match="unknown attention backend 'tortch'; did you mean 'torch'"):
        assemble_folder(tmp_path, overrides={"attention": "tortch"})
    with pytest.raises(ConfigError, match="unknown op 'rms_nrm'; did you mean 'rms_norm'"):
        assemble_folder(tmp_path, overrides={"rms_nrm": "torch"})


def test_nothing_stays_on_meta_and_fused_parts_share_one_matrix(tmp_path: Path) -> None:
    model = assemble_folder(_saved(tmp_path, lambda tensors: None)).model
    parameters = dict(model.named_parameters())
    assert {parameter.device.type for parameter in parameters.values()} == {"cpu"}
    assert not any(parameter.requires_grad for parameter in parameters.values())
    assert parameters["decoder.layers.0.attention.qkv.pieces.0.weight"].shape == (48 + 2 * 16, 48)
    assert parameters["decoder.layers.0.mlp.gate_up.pieces.0.weight"].shape == (160, 48)


@pytest.mark.parametrize("kind", ["gpt2", "gpt_neox"])
def test_old_files_leave_out_the_base_model_and_hold_masks(tmp_path: Path, kind: str) -> None:
    keys = {} if kind == "gpt_neox" else {"intermediate_size": ..., "num_key_value_heads": ..., "head_dim": ...}
    oracle = make_oracle(kind, {**keys, "tie_word_embeddings": True})
    oracle.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    base, layers, attention = ("transformer.", "h", "attn") if kind == "gpt2" else ("gpt_neox.", "layers", "attention")
    tensors = {name.removeprefix(base): tensor for name, tensor in tensors.items()}
    for layer in range(3):
        tensors[f"{layers}.{layer}.{attention}.bias"] = torch.ones(1, 1, 8, 8, dtype=torch.bool).tril()
        tensors[f"{layers}.{layer}.{attention}.masked_bias"] = torch.tensor(-1e9)
    save_file(tensors, tmp_path / "model.safetensors")
    tokens = random_tokens(12)
    found = PagedRun(assemble_folder(tmp_path)).prefill_and_decode(tokens, [12])
    torch.testing.assert_close(found, oracle_logits(oracle, tokens), rtol=1e-4, atol=1e-3)


def test_weights_of_a_part_that_the_config_leaves_out_are_refused(tmp_path: Path) -> None:
    make_oracle("stablelm", {"qk_layernorm": True}).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "qk_layernorm": False}))
    with pytest.raises(CheckpointError, match=r"tensor model.layers.0.self_attn.k_layernorm.norms.0.weight is not one"):
        assemble_folder(tmp_path)


def test_unknown_architectures_get_the_nearest_name() -> None:
    with pytest.raises(
        UnsupportedError, match="Qwen3MeoForCausalLM is not supported; the nearest that is: Qwen3MoeFor"
    ):
        load_model("Qwen3MeoForCausalLM")


def _pickled(
    path: Path, *, sharded: bool = False, change: Callable[[dict[str, Tensor]], None] = lambda _: None
) -> Path:
    """A folder with pytorch_model.bin, as transformers wrote until 2023; or with two of them and an index."""
    oracle = make_oracle("llama", {"tie_word_embeddings": False})
    oracle.config.save_pretrained(path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "architectures": ["LlamaForCausalLM"]}))
    tensors = {name: tensor.clone() for name, tensor in oracle.state_dict().items()}
    change(tensors)
    if not sharded:
        torch.save(tensors, path / "pytorch_model.bin")
        return path
    names, weight_map = list(tensors), {}
    for number, part in enumerate((names[:9], names[9:])):
        file = f"pytorch_model-{number + 1:05}-of-00002.bin"
        # A copy that the index does not name is not read.
        torch.save({**{name: tensors[name] for name in part}, UP: tensors[UP] + number}, path / file)
        weight_map |= dict.fromkeys(part, file)
    weight_map[UP] = "pytorch_model-00001-of-00002.bin"
    (path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return path


@pytest.mark.parametrize("sharded", [False, True])
def test_pickled_weights(tmp_path: Path, sharded: bool) -> None:
    tokens = random_tokens(12)
    found = PagedRun(assemble_folder(_pickled(tmp_path, sharded=sharded))).prefill_and_decode(tokens, [12])
    expected = oracle_logits(make_oracle("llama", {"tie_word_embeddings": False}), tokens)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)


def test_pickled_weights_of_the_old_kind(tmp_path: Path) -> None:
    path = _pickled(tmp_path)
    tensors = torch.load(path / "pytorch_model.bin", weights_only=True)
    torch.save(tensors, path / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    assert assemble_folder(path).model is not None


class _Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("this must not run",))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop(UP), rf"tensors are missing: {UP}$"),
        (lambda t: t.update({UP: t[UP][:-1]}), rf"pytorch_model\.bin: tensor {UP} is \[79, 48\]"),
        (lambda t: t.update({UP: t[UP].to(torch.int8)}), rf"tensor {UP} is of type torch.int8; Octavo reads float"),
        (lambda t: t.update({"extra.weight": t[UP]}), r"pytorch_model\.bin: tensor extra\.weight is not one of"),
        (lambda t: t.update({UP: 3}), rf"{UP} is not a tensor but int"),
        (lambda t: t.update({UP: _Evil()}), r"pytorch_model\.bin: holds more than tensors"),
    ],
)
def test_pickled_weights_that_do_not_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Callable[[dict[str, Any]], None], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        assemble_folder(_pickled(tmp_path, change=change))
    assert capsys.readouterr().out == ""


def test_a_damaged_pickled_file_is_named(tmp_path: Path) -> None:
    path = _pickled(tmp_path)
    for raw in ((path / "pytorch_model.bin").read_bytes()[:-700], b"", b"not a pickle at all"):
        (path / "pytorch_model.bin").write_bytes(raw)
        with pytest.raises(CheckpointError, match=r"pytorch_model\.bin: "):
            assemble_folder(path)


def test_a_terminal_sees_a_progress_bar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _saved(tmp_path, lambda tensors: None)
    shown = io.StringIO()
    monkeypatch.setattr("sys.stderr", shown)
    assemble_folder(path)
    assert shown.getvalue() == ""
    monkeypatch.setattr(shown, "isatty", lambda: True, raising=False)
    assemble_folder(path)
    assert "weights:" in shown.getvalue()
