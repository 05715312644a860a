"""How a family of models writes its thoughts and its calls of tools: what a file in `families/` says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

Schemas = Mapping[str, Mapping[str, Any]]
HARMONY_MARKERS = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>")

_NO_MARKERS = ("names", "template", "ids", "arguments")


class Side(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What thoughts and calls have in common. names: in options, vLLM's too. template: texts that its chat templates have.

    begin, end: markers around it. noise: further ones, which say nothing.
    """

    names: tuple[str, ...]
    template: tuple[str, ...] = ()
    begin: tuple[str, ...] = ()
    end: tuple[str, ...] = ()
    noise: tuple[str, ...] = ()

    @property
    def texts(self) -> str:
        """All markers, those within calls too, each on a line of its own."""
        values: list[Any] = [value for name, value in msgspec.structs.asdict(self).items() if name not in _NO_MARKERS]
        return "\n".join(text for value in values for text in (value if isinstance(value, tuple) else (str(value),)))


class Reasoning(Side, frozen=True, kw_only=True):
    """inside: an answer begins within thoughts, unless the prompt ends with a marker."""

    inside: bool = False


class Calls(Side, frozen=True, kw_only=True, tag_field="form"):
    """Calls begin with a marker of `begin` anywhere in the answer, where the forms read on.

    A form has `read`, which reads calls from the first one's marker on (`Reader.mark` keeps it) and returns False if what comes
    is no call: from the name on it is one, and not `marked` it must be of a tool that there is.

    bare: characters that begin calls without any marker, at the beginning of the answer only. ids: "call_…" as OpenAI's, nine
    letters and digits as Mistral's templates demand, or the ones that the model writes itself.
    """

    bare: str = ""
    ids: Literal["call", "nine", "own"] = "call"

    @property
    def start(self) -> str:
        """How models begin: with a marker, unless they need none."""
        return "" if self.bare else self.begin[0]
