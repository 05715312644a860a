"""Where a chat template comes from: the user, the tokenizer's folder, the .gguf file, or ours. Models may have several."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from octavo.base.errors import CheckpointError, ConfigError
from octavo.checkpoint.gguf import GgufFile, read_gguf
from octavo.checkpoint.json_file import JsonObject, read_json_if_there

DEFAULT: Final = "default"
_OURS: Final = Path(__file__).with_name("chat_templates")
_GGUF_KEY: Final = "tokenizer.chat_template"


def choose_template(given: str | None, source: Path | None) -> str | None:
    """Return the template to use: `given` is Jinja source, the name of one of the source's or of ours, or a file's path.

    None takes the source's default, which may be none. Raises ConfigError if `given` is nothing of these, CheckpointError
    if the source has templates but no default.
    """
    if given is not None and ("{{" in given or "{%" in given):
        return given
    found = {} if source is None else chat_templates(source)
    if given is None:
        if found and DEFAULT not in found:
            names = ", ".join(sorted(found))
            raise CheckpointError(f"{source}: has no {DEFAULT!r} chat template; name one with chat_template: {names}")
        return found.get(DEFAULT)
    if given in found:
        return found[given]
    ours = {path.stem: path for path in sorted(_OURS.glob("*.jinja"))}
    if given in ours:
        return _read(ours[given])
    try:
        return Path(given).expanduser().read_text(encoding="utf-8")
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: the home of an unknown user
        names = f" nor one of the model's ({', '.join(sorted(found))})" if found else ""
        names = f"{names} nor a file that can be read, nor one of ours ({', '.join(ours)})"
        raise ConfigError(f"chat_template is neither Jinja source{names}: {error}", field="chat_template") from error


def chat_templates(source: Path) -> dict[str, str]:
    """Return the chat templates by name that come with a tokenizer's folder or .gguf file."""
    if source.is_file():
        return _of_gguf(read_gguf(str(source)))
    found: dict[str, str] = {}
    # The later of these wins.
    for name in ("tokenizer_config.json", "chat_template.json"):
        found |= _of_json(read_json_if_there(source / name))
    if (source / "chat_template.jinja").is_file():
        found[DEFAULT] = _read(source / "chat_template.jinja")
    for path in sorted((source / "additional_chat_templates").glob("*.jinja")):
        found[path.stem] = _read(path)
    return found


def _of_gguf(file: GgufFile) -> dict[str, str]:
    others = [key for key in file.metadata if key.startswith(_GGUF_KEY + ".")]
    found = {key.removeprefix(_GGUF_KEY + "."): file.text(key) for key in others}
    return found | ({DEFAULT: file.text(_GGUF_KEY)} if _GGUF_KEY in file.metadata else {})


def _of_json(config: JsonObject) -> dict[str, str]:
    """Read the key "chat_template": one template, or a list of named ones."""
    value: object = config.values.get("chat_template")
    if not isinstance(value, list):
        return {DEFAULT: config.text("chat_template")} if config.has("chat_template") else {}
    entries = [JsonObject(f"{config.place}: chat_template", each) for each in value if isinstance(each, dict)]
    return {entry.text("name"): entry.text("template") for entry in entries}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
