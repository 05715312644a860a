"""Models by their hub name: what Octavo needs of a repository is brought into the local Hugging Face cache.

The hub is asked for the newest state of a revision. Where it cannot be reached, or with HF_HUB_OFFLINE, the state in the cache
is used.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from octavo.base.env import read_env
from octavo.base.errors import CheckpointError
from octavo.checkpoint.gguf import is_later_part
from octavo.config.model import LoadFormat

# organization/name, and for a repository of many GGUF files which of them: organization/name:Q4_K_M.
HUB_NAME: Final = re.compile(r"([\w.-]+/[\w.-]+)(?::([\w.-]+))?")
_DESCRIPTIONS: Final = ("*.json", "*.jinja", "*.model", "*.tiktoken", "merges.txt")
# The first that a repository has is fetched.
_WEIGHTS: Final = {"safetensors": "*.safetensors", "pt": "pytorch_model*.bin"}
# Folders hold copies for other programs, "consolidated" files copies under the names of the maker's own code.
_IGNORED: Final = ("*/*.safetensors", "*/*.bin", "*/*.json", "*/*.model", "consolidated*")
_LONGEST_REASON: Final = 400


def fetch(name: str, revision: str | None, load_format: LoadFormat) -> Path:
    """Return the folder of a model in the cache, or its .gguf file, and download what is not there yet.

    load_format: which weights; "dummy" fetches none. Raises CheckpointError saying why there is no such model.
    """
    match = HUB_NAME.fullmatch(name)
    assert match is not None, f"{name} is not a hub name"
    repository, variant = match[1], match[2]
    folder = _snapshot(repository, revision, _DESCRIPTIONS)
    # What is fetched from here on belongs to the same commit.
    if variant is not None:
        return _gguf(repository, folder, variant)
    for kind, pattern in _WEIGHTS.items():
        if load_format in ("auto", kind):
            _snapshot(repository, folder.name, (pattern,))
            if any(folder.glob(pattern)):
                return folder
    return _gguf(repository, folder, "") if load_format in ("auto", "gguf") else folder


def _snapshot(repository: str, revision: str | None, patterns: Sequence[str]) -> Path:
    """Fetch the files that match and return the folder."""
    # It takes 0.2 s to import, and only a hub name needs it.
    from huggingface_hub import snapshot_download

    env = read_env()
    try:
        folder = snapshot_download(
            repository,
            revision=revision,
            allow_patterns=list(patterns),
            ignore_patterns=list(_IGNORED),
            cache_dir=env.hf_hub_cache,
            endpoint=env.hf_endpoint,
            token=env.hf_token,
            local_files_only=env.hf_hub_offline,
        )
    except Exception as error:  # what the network raises depends on the version of huggingface_hub
        raise _failure(repository, revision, error) from error
    return Path(folder)


def _gguf(repository: str, folder: Path, variant: str) -> Path:
    """Fetch the .gguf file whose name holds `variant`, in whatever case, with its other parts, and return the first."""
    found = [file for file in _files(repository, folder) if file.endswith(".gguf") and variant.lower() in file.lower()]
    heads = sorted(file for file in found if not is_later_part(file))
    if not heads:
        named = f" with {variant!r} in its name" if variant else ", and no other weights that Octavo reads"
        raise CheckpointError(f"{repository}: the repository holds no .gguf file{named}")
    if len(heads) > 1:
        raise CheckpointError(
            f"{repository}: the repository holds {len(heads)} .gguf files ({', '.join(heads)}); say which by a part of its "
            f"name, such as {repository}:Q4_K_M"
        )
    return _snapshot(repository, folder.name, found) / heads[0]


def _files(repository: str, folder: Path) -> list[str]:
    """Return the paths of a repository's files; of the .gguf files in the cache, where the hub cannot be asked."""
    from huggingface_hub import HfApi

    env = read_env()
    cached = [str(path.relative_to(folder)) for path in folder.rglob("*.gguf")]
    if env.hf_hub_offline:
        return cached
    api = HfApi(endpoint=env.hf_endpoint, token=env.hf_token)
    try:
        info = api.model_info(repository, revision=folder.name, timeout=10)
    except Exception as error:  # as above
        if not cached:
            raise _failure(repository, folder.name, error) from error
        return cached
    return [each.rfilename for each in info.siblings or ()]


def _failure(repository: str, revision: str | None, error: Exception) -> CheckpointError:
    env = read_env()
    what = f"no model {repository!r}" + (f" of revision {revision!r}" if revision else "")
    if env.hf_hub_offline:
        why = f"HF_HUB_OFFLINE forbids to ask the hub, and the local cache ({env.hf_hub_cache}) lacks it"
    else:
        why = f"{env.hf_endpoint or 'the Hugging Face hub'} does not give it, and the local cache ({env.hf_hub_cache}) lacks it"
    reason = " ".join(str(error).split())[:_LONGEST_REASON]
    return CheckpointError(f"{what}: {why}: {reason}")
