"""Which form an answer must have: `StructuredOutputsParams`, with the names that scripts written for vLLM use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from octavo.base.errors import InvalidRequestError
from octavo.base.naming import checked_names
from octavo.base.unicode import check_unicode

MAX_CHOICE = 4096


@checked_names("structured output", {})
@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputsParams:
    """Exactly one of json, regex, choice, grammar, json_object, structural_tag and lark; others raise InvalidRequestError.

    json: a JSON schema, as an object or as text. regex: a regular expression of the whole answer, without looking around.
    choice: texts of which one is the answer. grammar: in Lark's form, or in EBNF as llama.cpp writes it. json_object: any JSON
    object. structural_tag: which parts of a free text have a form, as text or as an object.
    lark: a whole grammar in llguidance's own form, taken as it is.
    disable_any_whitespace, disable_additional_properties: so it is in any case, JSON is written on one line and without what a
    schema does not name. whitespace_pattern: a regular expression of what may stand between the parts of JSON.
    """

    json: str | Mapping[str, Any] | bool | None = None
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | Mapping[str, Any] | None = None
    lark: str | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.choice, list):
            object.__setattr__(self, "choice", tuple(self.choice))
        kind = self.kind
        value: Any = getattr(self, kind)
        texts: Any = value if kind == "choice" else (value,)
        wrong = ""
        if kind == "choice" and (not isinstance(value, tuple) or not 0 < len(value) <= MAX_CHOICE):
            wrong = f"must be a list of 1 to {MAX_CHOICE} texts"
        elif kind in ("regex", "choice", "grammar", "lark"):
            sound = all(isinstance(text, str) and text for text in texts)
            wrong = "" if sound else "takes text, and none that is empty"
        elif kind != "json_object" and not isinstance(value, (str, Mapping, bool)):
            wrong = "must be an object, or its text"
        if wrong:
            raise InvalidRequestError(f"structured_outputs.{kind} {wrong}", field=f"structured_outputs.{kind}")
        for text in filter(lambda text: isinstance(text, str), texts):
            check_unicode(text, f"structured_outputs.{kind}")

    @property
    def kind(self) -> str:
        """The one field that says what the form is."""
        named = [name for name in _KINDS if getattr(self, name) is not None]
        given = [name for name in named if name != "json_object" or self.json_object]
        if len(given) != 1:
            raise InvalidRequestError(
                f"structured_outputs takes exactly one of {', '.join(_KINDS)}, not {' and '.join(given) or 'none'}",
                field="structured_outputs",
            )
        return given[0]


_KINDS = tuple(one.name for one in fields(StructuredOutputsParams))[:7]
