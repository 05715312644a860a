"""Options of vLLM's that Octavo has not: what happens to them, and why. No row of `foreign.toml` is silent.

Command lines and scripts that were written for vLLM should work. An option that would change nothing here is accepted with a
note; one whose wish cannot be met is refused with the reason, unless its value wishes for nothing. An option of our own with the
same name takes the place of its row there.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from octavo.base.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreign:
    """An option: its name with underscores. harmless: values that may pass though it is refused; None accepts all."""

    name: str
    takes: Literal["nothing", "one", "many"]
    why: str
    harmless: tuple[str, ...] | None

    @property
    def refused(self) -> bool:
        """Whether values that wish for something are refused."""
        return self.harmless is not None

    def check(self, value: Any) -> str:
        """Return the note for a value; raises ConfigError if it cannot be met."""
        wishes = value is not None and value is not False and value != ()
        if self.harmless is not None and wishes and str(value) not in self.harmless:
            raise ConfigError(f"{self.name} is not supported: {self.why}", field=self.name)
        return f"{self.name} changes nothing: {self.why}"


_TABLE: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def _options(row: dict[str, Any]) -> list[Foreign]:
    why, takes = _TABLE["reasons"].get(row["why"], row["why"]), row.get("takes", "one")
    harmless = tuple(row.get("harmless", "").split()) if "refuse" in row else None
    names = (row["accept"] if harmless is None else row["refuse"]).split()
    return [Foreign(name=name, takes=takes, why=why, harmless=harmless) for name in names]


FOREIGN = {one.name: one for rows in _TABLE["rows"].values() for row in rows for one in _options(row)}
# Short spellings of rows.
SHORT: dict[str, str] = _TABLE["short"]
