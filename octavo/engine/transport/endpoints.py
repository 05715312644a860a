"""Where the sockets of one engine lie: files in a folder that only this user can enter. No TCP port is opened.

Requests: every front pushes to the engine's one socket. Answers: the engine pushes to a socket of each front.
"""

from __future__ import annotations

import os
import shutil
import tempfile

from octavo.base.errors import ConfigError

# A Unix socket path has 108 bytes; this leaves room for the file names below.
_LONGEST_FOLDER = 80


def make_folder() -> str:
    """Make the private folder (mode 0700) of one engine's sockets. Raises ConfigError where nothing can be written."""
    try:
        parent = tempfile.gettempdir()
        if len(os.fsencode(parent)) > _LONGEST_FOLDER - 20:
            parent = "/tmp"
        return tempfile.mkdtemp(prefix="octavo-", dir=parent)
    except OSError as error:
        raise ConfigError(f"no folder for the engine's sockets: {error}; name one with room by TMPDIR") from error


def remove_folder(folder: str) -> None:
    """Remove the folder and its sockets; nothing happens if it is gone already."""
    shutil.rmtree(folder, ignore_errors=True)


def engine_endpoint(folder: str) -> str:
    """Return the address at which the engine takes messages of all fronts."""
    return f"ipc://{folder}/engine"


def front_endpoint(folder: str, front: int) -> str:
    """Return the address at which front number `front` takes the engine's messages."""
    return f"ipc://{folder}/front-{front}"
