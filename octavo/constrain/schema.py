"""JSON schemas as a grammar takes them: closed where they leave open what an answer would only ramble about."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from octavo.base.errors import InvalidRequestError

# A schema is about to be walked through and compiled: none that anybody wrote by hand comes near.
MAX_CHARACTERS = 2**18
_MAX_DEPTH = 64
# Definitions that others name, times how deep they are nested: the compiler's recursion overflows at twice as much.
_MAX_PATH = 1500
# The most that its reader of JSON takes.
_DEEPEST = 128
# Where an object next to one of these is closed, what these say of other properties could not be fulfilled.
_COMBINING = ("allOf", "anyOf", "oneOf", "not", "if", "$ref")
_OPEN = ("additionalProperties", "patternProperties", "unevaluatedProperties", *_COMBINING)
# Words that may put two schemas on top of each other, wherever they stand: nothing is closed then.
_JOINING = ("allOf", "$dynamicRef", "$recursiveRef", "unevaluatedProperties", "dependentSchemas", "dependencies", "if")
# Groups and classes of a regular expression, and what is escaped.
_GROUPS = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|\((?:\\.|[^()\\])*\)")
_MANY = ("properties", "patternProperties", "$defs", "definitions")
_LISTS = ("anyOf", "oneOf", "prefixItems", "items", "additionalProperties")


def schema_of(given: Any, field: str) -> Any:
    """Return a schema from its text or as it is; raises InvalidRequestError naming the field for what is too large or none."""
    try:
        text = given if isinstance(given, str) else json.dumps(given, allow_nan=False)
        schema = json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidRequestError(f"{field} is no JSON schema: {error}", field=field) from error
    if len(text) > MAX_CHARACTERS:
        raise InvalidRequestError(f"{field} has {len(text)} characters, and may have {MAX_CHARACTERS}", field=field)
    if not isinstance(schema, (Mapping, bool)):
        raise InvalidRequestError(f"{field} must be a JSON schema, which is an object", field=field)
    return schema


def json_expression(
    schema: Any, field: str, *, whitespace: str | None = None, lenient: bool = False, top: str | None = None
) -> str:
    """Return Lark's expression of JSON that a schema describes, on one line.

    whitespace: a regular expression of what may stand between its parts. lenient: keywords that grammars do not know are passed
    over. top: the type that it must have in any case.
    """
    schema = schema_of(schema, field)
    if schema is False:
        raise InvalidRequestError(f"{field} allows no value", field=field)
    schema = {} if schema is True else schema
    if top is not None and "type" not in schema and not any(word in schema for word in _OPEN):
        schema = {"type": top, **schema}
    closed, text = _closed(schema, field, 0, lenient), json.dumps(schema)
    check_path(text, field, _nesting(text))
    for start in re.findall(r'"\$ref": "(#[^"]*)"', text):
        _follow(schema, start, field)
    schema = schema if any(f'"{word}"' in text for word in _JOINING) else closed
    guidance: dict[str, Any] = {"lenient": lenient, "whitespace_flexible": False}
    if whitespace is None:
        guidance |= {"item_separator": ", ", "key_separator": ": "}
    else:
        guidance |= {"whitespace_flexible": True, "whitespace_pattern": whitespace}
    return "%json " + json.dumps({**schema, "x-guidance": guidance})


def check_path(text: str, field: str, nesting: int = _DEEPEST) -> None:
    """Refuse text with so many references to definitions, nested so deep, that to compile it could end the process."""
    plain = re.sub(r"\\u00([2-7][0-9a-fA-F])", lambda found: chr(int(found[1], 16)), text)
    count = len(set(re.findall(r'"\$ref"\s*:\s*"([^"]*)"', plain)))
    if count * nesting > _MAX_PATH:
        most = f"{_MAX_PATH // nesting} where it is nested {nesting} levels deep"
        raise InvalidRequestError(f"{field} refers to {count} definitions, and may refer to {most}", field=field)


def _nesting(text: str) -> int:
    """Return how deep JSON is nested."""
    deepest = depth = 0
    for bracket in re.findall(r"[][{}]", re.sub(r'"(?:\\.|[^"\\])*"', "", text)):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    return deepest


def text_limits(schema: Mapping[str, Any]) -> str:
    """Return Lark's expression of what a schema says of a text by itself, without quotes: length and pattern; "" for nothing."""
    import llguidance

    low, high, pattern = (schema.get(word) for word in ("minLength", "maxLength", "pattern"))
    low, high = low if isinstance(low, int) else 0, high if isinstance(high, int) else ""
    found = [f"/(.|\\n){{{low},{high}}}/"] if low or high != "" else []
    if isinstance(pattern, str):
        first, last = pattern.startswith("^"), pattern.endswith("$") and not pattern.endswith("\\$")
        if "|" in _GROUPS.sub("", pattern):
            first = last = False  # Each may be of one alternative only: an end that is left is refused.
        body = llguidance.regex_to_lark(pattern[first : len(pattern) - last], "d")
        found.append(f"/{'' if first else '(?s:.*)'}(?:{body}){'' if last else '(?s:.*)'}/")
    return " & ".join(found)


def _follow(schema: Any, reference: Any, field: str) -> None:
    """Refuse a reference that leads to references only, and in the end to itself."""
    seen: set[str] = set()
    while isinstance(reference, str) and reference[:2] in ("#", "#/"):
        if reference in seen:
            raise InvalidRequestError(f"{field}: {reference} refers to nothing but itself", field=field)
        seen.add(reference)
        found = schema
        for name in reference.split("/")[1:]:
            found = found.get(name) if isinstance(found, Mapping) else None
        reference = found.get("$ref") if isinstance(found, Mapping) else None


def _closed(schema: Any, field: str, depth: int, lenient: bool) -> Any:
    """Return the schema with `additionalProperties: false` for objects that name properties and do not say anything of others."""
    if not isinstance(schema, Mapping):
        return schema
    if depth > _MAX_DEPTH:
        raise InvalidRequestError(f"{field} is nested more than {_MAX_DEPTH} levels deep", field=field)
    found: dict[str, Any] = dict(schema)
    properties, required, least = found.get("properties"), found.get("required"), found.get("minProperties")
    required = set(map(str, required if isinstance(required, list) else ()))
    if isinstance(least, int) and least > len(required) + 1 and not lenient:
        message = (
            "minProperties: no grammar can see to it that as many names differ, beyond those required and one more"
        )
        raise InvalidRequestError(f"{field}: {message}", field=field)
    for word in _MANY:
        if isinstance(found.get(word), Mapping):
            found[word] = {name: _closed(one, field, depth + 1, lenient) for name, one in found[word].items()}
    for word in _LISTS:
        # Alternatives beside properties describe the same object.
        if isinstance(found.get(word), list) and not (word.endswith("Of") and properties):
            found[word] = [_closed(one, field, depth + 1, lenient) for one in found[word]]
        elif isinstance(found.get(word), Mapping):
            found[word] = _closed(found[word], field, depth + 1, lenient)
    names = isinstance(properties, Mapping) and required <= set(properties)
    if names and properties and not any(word in found for word in _OPEN) and not least:
        found["additionalProperties"] = False
    return found
