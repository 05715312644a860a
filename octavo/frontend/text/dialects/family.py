"""How a family of models writes its thoughts and its calls of tools: what a file in `families/` says."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, Literal

import msgspec

from octavo.frontend.text.dialects.reader import Reader

Schemas = Mapping[str, Mapping[str, Any]]
HARMONY_MARKERS = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>")


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
        values: list[Any] = list(msgspec.structs.asdict(self).values())
        return "\n".join(text for value in values for text in (value if isinstance(value, tuple) else (str(value),)))


class Reasoning(Side, frozen=True, kw_only=True):
    """inside: an answer begins within thoughts, unless the prompt ends with a marker."""

    inside: bool = False


class Calls(Side, frozen=True, kw_only=True, tag_field="form"):
    """Calls begin with a marker of `begin` anywhere in the answer, where the forms read on.

    bare: characters that begin calls without any marker, at the beginning of the answer only. ids: "call_…" as OpenAI's, nine
    letters and digits as Mistral's templates demand, or the ones that the model writes itself.
    """

    bare: str = ""
    ids: Literal["call", "nine", "own"] = "call"

    def read(self, reader: Reader, schemas: Schemas, *, marked: bool) -> Generator[None, None, bool]:
        """Read calls from the first one's marker on, which `Reader.mark` keeps; False if what comes is no call.

        From the name on it is one, whatever follows. Not `marked`, it must be of a tool that there is.
        """
        raise NotImplementedError

    def opening(self, name: str) -> str:
        """Return how a call of a tool begins, up to its arguments; without a name, up to that."""
        raise NotImplementedError
