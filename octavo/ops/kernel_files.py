"""Where Triton keeps what it compiled: folders that can be copied, to another place or to a machine of the same kind."""

from __future__ import annotations

import json
from pathlib import Path

from triton.runtime.cache import FileCacheManager


class KernelFiles(FileCacheManager):
    """Triton's own manager of a kernel's files. It notes where they lay when they were written; here their names count."""

    def get_group(self, filename: str) -> dict[str, str] | None:
        """Return name -> path of the files of a kernel, or None if one is missing or their list is damaged: it is made again."""
        listed = self.get_file(f"__grp__{filename}")
        if listed is None:
            return None
        try:
            names = json.loads(Path(listed).read_text(encoding="utf-8"))["child_paths"]
            found = {name: self.get_file(name) for name in names}
        except (ValueError, KeyError, TypeError):
            return None
        return None if None in found.values() else found  # pyright: ignore[reportReturnType]
