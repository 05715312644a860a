"""From the form that an answer must have to a grammar in llguidance's form of Lark.

A form becomes a `Form`, an expression and the rules that it needs; around it come thoughts and calls of tools; `checked` says
what is wrong with the whole, before an engine hears of it.
"""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass
from typing import Any

from octavo.base.errors import InvalidRequestError
from octavo.constrain.schema import MAX_CHARACTERS, check_path, json_expression
from octavo.protocol.structured import StructuredOutputsParams

# Text is cut into tokens as the model likes, also where only one text can come.
HEADER = '%llguidance {"no_forcing": true}'
# What may stand between parts of JSON that has no schema: lines and what they begin with, or a space, but not for ever.
_SPACE = r"(\n[ \t]{0,32}| )?"
TEXT_RULE = "TEXT: /(.|\\n)*/"
# Texts and regular expressions of Lark are passed over, and the name of the first rule is found.
_START = re.compile(r'"(?:\\.|[^"\\\n])*"|/(?:\\.|[^/\\\n])+/|//[^\n]*|\bstart\b')
# Rules that name each other: the compiler's recursion overflows at twice as many.
_MAX_RULES = 1000
_RULE = re.compile(r"^\s*[?!]*\w[^:\n]*:", re.MULTILINE)
# Whole numbers that the compiler negates, and never comes back.
_LEAST_NUMBERS = re.compile(r"-9223372036854775\d{3}(?!\d)")
_HEADER = re.compile(r"^\s*%llguidance\s*\{[^\n]*\}[^\n]*$", re.MULTILINE)
# What a grammar's compiler complains of without the keyword at fault.
_UNNAMED = {
    "in a registry": "$ref",
    "Anchor '": "$ref",
    "float range": "minimum, maximum",
    "JSON schema: regex": "pattern",
}


@dataclass(frozen=True, slots=True)
class Form:
    """A part of a grammar: an expression, and rules that it names."""

    expression: str
    rules: tuple[str, ...] = ()


def literal(text: str) -> str:
    """Return the expression of a text."""
    return json.dumps(text, ensure_ascii=False)


def form_of(params: StructuredOutputsParams, field: str = "structured_outputs") -> Form:
    """Return the form that an answer must have; raises InvalidRequestError naming the field."""
    kind, where = params.kind, f"{field}.{params.kind}"
    match kind:
        case "json":
            return Form(json_expression(params.json, where, whitespace=params.whitespace_pattern))
        case "json_object":
            return Form(json_expression({"type": "object"}, where, whitespace=params.whitespace_pattern or _SPACE))
        case "regex":
            return Form(_regex(str(params.regex)))
        case "choice":
            return Form("(" + " | ".join(map(literal, dict.fromkeys(params.choice or ()))) + ")")
        case "grammar" | "lark":
            return _user_grammar(str(params.grammar or params.lark), where)
        case _:
            return _structural(params.structural_tag, where)


def whole(form: Form) -> str:
    """Return the grammar of an answer that is this form."""
    return "\n".join((HEADER, f"start: {form.expression}", *dict.fromkeys(form.rules), ""))


def own_grammar(lark: str) -> str:
    """Return a whole grammar that somebody wrote, with our header; raises InvalidRequestError for one that is too large."""
    check_path(lark, "structured_outputs.lark")
    return f"{HEADER}\n{_HEADER.sub('', lark)}"


@functools.lru_cache(256)
def checked(grammar: str, field: str = "structured_outputs") -> str:
    """Return a grammar that can be compiled; raises InvalidRequestError naming the field, and saying why it cannot."""
    import llguidance

    from octavo.constrain.matcher import limits

    if len(grammar) > 4 * MAX_CHARACTERS:
        raise InvalidRequestError(f"{field} has {len(grammar)} characters, far too many", field=field)
    if number := _LEAST_NUMBERS.search(grammar):
        raise InvalidRequestError(f"{field}: there is no number {number[0]} in a grammar", field=field)
    if len(_RULE.findall(grammar)) > _MAX_RULES:
        raise InvalidRequestError(f"{field}: a grammar has at most {_MAX_RULES} rules", field=field)
    try:
        failed, messages = llguidance.LLMatcher.validate_grammar_with_warnings(grammar, None, limits=limits())
    except BaseException as error:
        if type(error).__module__ != "pyo3_runtime":  # A defect of the compiler's: no class that could be named.
            raise
        failed, messages = True, [f"its compiler fails: {error}"]
    if failed:
        raise InvalidRequestError(f"{field}: {_reason(messages[0])}", field=field)
    return grammar


def _reason(message: str) -> str:
    """Return what a grammar's compiler says without the lines of the grammar, which nobody sent like that."""
    lines = [line.strip() for line in message.splitlines() if line.strip() and not re.match(r"\s*(\d+ \||\^)", line)]
    reason = re.sub(r"^at \d+\(\d+\): (failed to compile JSON schema: )?", "", " ".join(lines))
    return next((f"{word}: {reason}" for sign, word in _UNNAMED.items() if sign in message), reason)


def _regex(pattern: str) -> str:
    """Return the expression of a regular expression. Digits are ASCII's, as in JSON Schema."""
    import llguidance

    return f"/{llguidance.regex_to_lark(pattern, 'd')}/"


def _user_grammar(text: str, field: str) -> Form:
    """Return a user's grammar as rules, its first one under another name; EBNF is rewritten."""
    from llguidance.gbnf_to_lark import GbnfToLarkError, any_to_lark

    if len(text) > MAX_CHARACTERS:
        raise InvalidRequestError(f"{field} has {len(text)} characters, and may have {MAX_CHARACTERS}", field=field)
    check_path(text, field)
    try:
        lark = any_to_lark(text)
    except (GbnfToLarkError, RecursionError, IndexError, KeyError, ValueError, AssertionError) as error:
        raise InvalidRequestError(f"{field} is no grammar: {error}", field=field) from error
    rules = _START.sub(lambda found: "answer" if found[0] == "start" else found[0], _HEADER.sub("", lark))
    return Form("answer", (rules,))


def _structural(written: Any, field: str) -> Form:
    """Return a text in which every trigger begins one of the structures; also as a `format` of triggered tags."""
    rules, options = [TEXT_RULE], list[str]()
    try:
        tag: Any = json.loads(written) if isinstance(written, str) else written
        tag = tag.get("format", tag)
        given = tag.get("structures") or tag["tags"]
        schemas = [one["schema"] if "schema" in one else one["content"]["json_schema"] for one in given]
        bodies = [json_expression(schema, field) for schema in schemas]
        tags = [(one["begin"], body, one["end"]) for one, body in zip(given, bodies, strict=True)]
        triggers = tuple(map(str, tag["triggers"]))
        if not tags or not all(begin.startswith(triggers) for begin, *_ in tags):
            raise ValueError("every structure must begin with one of the triggers")
        for number, trigger in enumerate(triggers):
            own = [one for one in tags if one[0].startswith(trigger)]
            bodies = [f"{literal(begin[len(trigger) :])} {body} {literal(end)}" for begin, body, end in own]
            rules.append(f"trigger_{number}[lazy]: TEXT {literal(trigger)}")
            options += [f"trigger_{number} ({' | '.join(bodies)})"] if bodies else []
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InvalidRequestError(f"{field} is no structural tag: {error!r}", field=field) from error
    return Form(f"({' | '.join(options)})* TEXT", tuple(rules))
