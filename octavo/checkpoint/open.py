"""From a model's name to its `Checkpoint`: where it lies, how it is stored, and its facts. No weight is read."""

from __future__ import annotations

from pathlib import Path

from octavo.base.errors import CheckpointError, ConfigError
from octavo.base.facts import ModelFacts
from octavo.checkpoint.gguf import GgufFile, read_gguf
from octavo.checkpoint.gguf_facts import read_gguf_facts
from octavo.checkpoint.hf_config import read_hf_facts
from octavo.checkpoint.json_file import JsonObject, read_json_if_there
from octavo.checkpoint.locate import locate
from octavo.checkpoint.record import Checkpoint
from octavo.checkpoint.safetensors_index import list_tensors, shard_files
from octavo.config.model import ModelConfig


def open_checkpoint(config: ModelConfig) -> Checkpoint:
    """Find the model that `config` names; raises CheckpointError saying what was tried, or which file or key is wrong.

    The chat template is the one that `config` gives, else that of the tokenizer's folder or file.
    """
    path = locate(config.model)
    weights = path if path.is_file() else _lone_gguf(path, config)
    tokenizer = _tokenizer(config, weights or path)
    template = _given_template(config) or (chat_template(tokenizer) if tokenizer is not None else None)
    if weights is not None:
        if config.load_format == "safetensors":
            raise CheckpointError(f"{weights}: is a GGUF file, but load_format is 'safetensors'", field="load_format")
        if config.hf_overrides:
            raise ConfigError("hf_overrides changes config.json, and a GGUF file has none", field="hf_overrides")
        facts, kind, files = read_gguf_facts(read_gguf(str(weights))), "gguf", (str(weights),)
        path = weights
    else:
        facts, files = _folder(path, config)
        kind = "safetensors" if files else "config"
    return Checkpoint(
        name=config.model,
        path=str(path),
        kind=kind,
        files=files,
        facts=facts,
        tokenizer=None if tokenizer is None else str(tokenizer),
        chat_template=template,
    )


def _lone_gguf(folder: Path, config: ModelConfig) -> Path | None:
    """Return the folder's .gguf file if that is what it is about; None if safetensors or a bare config is."""
    found = sorted(folder.glob("*.gguf"))
    if config.load_format == "safetensors" or (config.load_format != "gguf" and shard_files(folder, complete=False)):
        return None
    if len(found) > 1:
        raise CheckpointError(
            f"{folder}: holds {len(found)} .gguf files ({', '.join(f.name for f in found)}); name one of them"
        )
    if not found and config.load_format == "gguf":
        raise CheckpointError(f"{folder}: holds no .gguf file, but load_format is 'gguf'", field="load_format")
    return found[0] if found else None


def _folder(folder: Path, config: ModelConfig) -> tuple[ModelFacts, tuple[str, ...]]:
    """Return facts and weight files of a Hugging Face folder."""
    dummy = config.load_format == "dummy"
    if not (folder / "config.json").is_file():
        raise CheckpointError(f"{folder}: holds no model: no config.json and no .gguf file")
    files = shard_files(folder, complete=not dummy)
    if not files and not dummy:
        other = sorted(p.name for pattern in ("*.bin", "*.pt", "*.pth") for p in folder.glob(pattern))
        hint = f" ({other[0]} is pickled, which Octavo does not load: convert it to safetensors)" if other else ""
        raise CheckpointError(f"{folder}: holds no weights: no *.safetensors and no .gguf file{hint}")
    return read_hf_facts(folder, weights_dtype=_weights_dtype(files), overrides=config.hf_overrides), files


def _weights_dtype(files: tuple[str, ...]) -> str:
    """Return the type of the first floating-point matrix of the first shard."""
    tensors = list_tensors(files[:1]).values()
    return next(
        (t.dtype for t in tensors if len(t.shape) > 1 and t.dtype in ("float32", "float16", "bfloat16")), "float32"
    )


def _tokenizer(config: ModelConfig, model: Path) -> Path | None:
    """Return the folder with tokenizer.json, or the .gguf file with a vocabulary; None if there is none or none is wanted."""
    if config.skip_tokenizer_init:
        return None
    if config.tokenizer is None:
        return model if model.is_file() or (model / "tokenizer.json").is_file() else None
    given = Path(config.tokenizer).expanduser()
    path = given.parent.absolute() if given.name == "tokenizer.json" and given.is_file() else locate(config.tokenizer)
    if path.is_dir() and not (path / "tokenizer.json").is_file():
        found = sorted(path.glob("*.gguf"))
        if len(found) != 1:
            raise CheckpointError(f"{path}: holds no tokenizer.json, and not exactly one .gguf file", field="tokenizer")
        return found[0]
    return path


def _given_template(config: ModelConfig) -> str | None:
    given = config.chat_template
    if given is None or "{{" in given or "{%" in given:
        return given
    try:
        return Path(given).expanduser().read_text(encoding="utf-8")
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: the home of an unknown user
        raise ConfigError(
            f"chat_template is neither Jinja source nor a file that can be read: {error}", field="chat_template"
        ) from error


def chat_template(source: Path) -> str | None:
    """Return the chat template that comes with a tokenizer's folder or .gguf file, None if none does."""
    if source.is_file():
        return _gguf_template(read_gguf(str(source)))
    jinja = source / "chat_template.jinja"
    if jinja.is_file():
        try:
            return jinja.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{jinja}: cannot be read: {error}") from error
    for name in ("chat_template.json", "tokenizer_config.json"):
        found = _json_template(read_json_if_there(source / name))
        if found is not None:
            return found
    return None


def _gguf_template(file: GgufFile) -> str | None:
    return file.text("tokenizer.chat_template") if "tokenizer.chat_template" in file.metadata else None


def _json_template(config: JsonObject) -> str | None:
    """Read the key "chat_template": one template, or a list of named ones of which "default" is taken."""
    if not isinstance(config.values.get("chat_template"), list):
        return config.text("chat_template") if config.has("chat_template") else None
    named = {
        entry.get("name"): entry.get("template")
        for entry in config.list("chat_template") or ()
        if isinstance(entry, dict)
    }
    template = named.get("default")
    if not isinstance(template, str):
        raise config.fail("chat_template", f"names no 'default' template, only {sorted(map(str, named))}")
    return template
