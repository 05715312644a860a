"""Which dialect a model speaks: by a name, which may be one of vLLM's, or found from the markers in its chat template.

Every file in `families/` is one family. Another package adds its own by an entry point "octavo.dialects" that names a file of the
same form: `my_family = "my_package:PATH"`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from octavo.base.errors import ConfigError, PluginError
from octavo.base.naming import unknown_name
from octavo.base.plugins import extend
from octavo.base.registry import Registry
from octavo.frontend.text.dialects.bare_calls import BareCalls
from octavo.frontend.text.dialects.family import HARMONY_MARKERS, Reasoning, Side
from octavo.frontend.text.dialects.json_calls import JsonCalls, NamedCalls
from octavo.frontend.text.dialects.python_calls import PythonCalls
from octavo.frontend.text.dialects.tagged_calls import TaggedCalls

_FOLDER: Final = Path(__file__).with_name("families")


class Dialect(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Both sides of a model's dialect. harmony: the form of whole turns, in which both sides are given."""

    calls: JsonCalls | NamedCalls | TaggedCalls | PythonCalls | BareCalls | None = None
    reasoning: Reasoning | None = None
    harmony: Side | None = None

    @property
    def texts(self) -> str:
        """All markers, each on a line of its own."""
        sides = [side.texts for side in (self.calls, self.reasoning) if side is not None]
        return "\n".join((*sides, *(HARMONY_MARKERS if self.harmony else ())))


def families() -> Iterator[Dialect]:
    """Yield every family that is known; raises PluginError for a file that cannot be read."""
    registry = Registry("dialect", {})
    extend(registry, "octavo.dialects")
    for path in (*sorted(_FOLDER.glob("*.toml")), *(Path(registry.load(name)) for name in registry)):
        try:
            yield msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), Dialect)
        except (OSError, ValueError) as error:
            raise PluginError(f"{path} describes no dialect: {error}") from error


def find_dialect(calls: str, reasoning: str, template: str | None) -> Dialect:
    """Return how a model writes. calls, reasoning: a family's name, "auto" or "none". Raises ConfigError for another name.

    A model whose template says nothing of tools has no dialect of calls.
    """
    known = list(families())
    caller = _chosen("tool_call_parser", calls, known, lambda family: family.calls, template or "")
    thinker = _chosen("reasoning_parser", reasoning, known, lambda family: family.reasoning, template or "")
    harmony = caller.harmony or thinker.harmony
    return Dialect(calls=caller.calls, reasoning=thinker.reasoning, harmony=harmony)


def _chosen(
    field: str, name: str, known: Sequence[Dialect], side_of: Callable[[Dialect], Side | None], template: str
) -> Dialect:
    """Return the family of this name; for "auto" the one of whose texts the most stand in the template."""
    sides = [(side, family) for family in known if (side := side_of(family) or family.harmony) is not None]
    if name == "auto":
        fitting = [one for one in sides if one[0].template and all(text in template for text in one[0].template)]
        return max(fitting, key=lambda one: sum(map(len, one[0].template)), default=(None, Dialect()))[1]
    names = {each: family for side, family in sides for each in side.names} | {"none": Dialect()}
    if name not in names:
        raise ConfigError(unknown_name(field, name, ("auto", *names)), field=field)
    return names[name]
