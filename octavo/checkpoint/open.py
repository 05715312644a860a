"""From a model's name to its `Checkpoint`: where it lies, how it is stored, and its facts. No weight is read."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from octavo.base.errors import CheckpointError, ConfigError
from octavo.checkpoint.generation import sampling_defaults
from octavo.checkpoint.gguf import is_later_part, read_gguf
from octavo.checkpoint.gguf_facts import read_gguf_facts
from octavo.checkpoint.hf_config import read_hf_facts
from octavo.checkpoint.locate import locate
from octavo.checkpoint.record import Checkpoint
from octavo.checkpoint.shards import ShardKind, shard_files, weights_dtype
from octavo.checkpoint.templates import choose_template
from octavo.checkpoint.tokenizer_files import TOKENIZER_FILES, tokenizer_file
from octavo.config.model import ModelConfig

# The first that a folder has is taken.
_KINDS: Final[tuple[ShardKind, ...]] = ("safetensors", "pt")


def open_checkpoint(config: ModelConfig) -> Checkpoint:
    """Find the model that `config` names; raises CheckpointError saying what was tried, or which file or key is wrong.

    The chat template is the one that `config` gives or names, else that of the tokenizer's folder or file.
    """
    if config.trust_remote_code:
        raise ConfigError(
            "trust_remote_code is not supported: Octavo never runs code that comes with weights; an architecture is added "
            "as a model file of Octavo or of a plugin",
            field="trust_remote_code",
        )
    path = locate(config.model, config.revision, config.load_format)
    gguf = path if path.is_file() else _lone_gguf(path, config)
    tokenizer = _tokenizer(config, gguf or path)
    template = choose_template(config.chat_template, tokenizer)
    if gguf is None:
        return _of_folder(path, config, tokenizer, template)
    if config.load_format in ("safetensors", "pt"):
        raise CheckpointError(f"{gguf}: is a GGUF file, but load_format is {config.load_format!r}", field="load_format")
    if config.hf_overrides:
        raise ConfigError("hf_overrides changes config.json, and a GGUF file has none", field="hf_overrides")
    file = read_gguf(str(gguf))
    return Checkpoint(
        name=config.model,
        path=str(gguf),
        kind="gguf",
        files=file.files,
        facts=read_gguf_facts(file),
        tokenizer=None if tokenizer is None else str(tokenizer),
        chat_template=template,
        sampling=sampling_defaults(gguf, config),
    )


def _lone_gguf(folder: Path, config: ModelConfig) -> Path | None:
    """Return the folder's .gguf file if that is what it is about; None if other weights or a bare config is."""
    found = sorted(path for path in folder.glob("*.gguf") if not is_later_part(path.name))
    if config.load_format in ("safetensors", "pt"):
        return None
    if config.load_format != "gguf" and any(shard_files(folder, kind, complete=False) for kind in _KINDS):
        return None
    if len(found) > 1:
        raise CheckpointError(
            f"{folder}: holds {len(found)} .gguf files ({', '.join(f.name for f in found)}); name one of them"
        )
    if not found and config.load_format == "gguf":
        raise CheckpointError(f"{folder}: holds no .gguf file, but load_format is 'gguf'", field="load_format")
    return found[0] if found else None


def _of_folder(folder: Path, config: ModelConfig, tokenizer: Path | None, template: str | None) -> Checkpoint:
    """Return the checkpoint of a Hugging Face folder."""
    dummy = config.load_format == "dummy"
    if not (folder / "config.json").is_file():
        raise CheckpointError(f"{folder}: holds no model: no config.json and no .gguf file")
    asked: list[ShardKind] = [kind for kind in _KINDS if config.load_format in ("auto", "dummy", kind)]
    kind: ShardKind | None = next((kind for kind in asked if shard_files(folder, kind, complete=False)), None)
    if kind is None and not dummy:
        raise CheckpointError(f"{folder}: holds no weights: no *.safetensors, pytorch_model*.bin or .gguf file")
    files: tuple[str, ...] = () if kind is None else shard_files(folder, kind, complete=not dummy)
    dtype = weights_dtype(files[0]) if files and kind == "safetensors" else "float32"
    return Checkpoint(
        name=config.model,
        path=str(folder),
        kind=kind or "config",
        files=files,
        facts=read_hf_facts(folder, weights_dtype=dtype, overrides=config.hf_overrides),
        tokenizer=None if tokenizer is None else str(tokenizer),
        chat_template=template,
        sampling=sampling_defaults(folder, config),
    )


def _tokenizer(config: ModelConfig, model: Path) -> Path | None:
    """Return the folder with tokenizer files, or the .gguf file with a vocabulary; None if there is none or none is wanted."""
    if config.skip_tokenizer_init:
        return None
    if config.tokenizer is None:
        return model if model.is_file() or tokenizer_file(model) is not None else None
    given = Path(config.tokenizer).expanduser()
    if given.name in TOKENIZER_FILES and given.is_file():
        return given.parent.absolute()
    # A revision names a state of the model's repository, not of another's.
    path = locate(config.tokenizer, config.revision if config.tokenizer == config.model else None, "dummy")
    if path.is_dir() and tokenizer_file(path) is None:
        found = sorted(path.glob("*.gguf"))
        if len(found) != 1:
            raise CheckpointError(f"{path}: holds no tokenizer.json, and not exactly one .gguf file", field="tokenizer")
        return found[0]
    return path
