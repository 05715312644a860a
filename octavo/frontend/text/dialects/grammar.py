"""A whole turn as a grammar: thoughts, then an answer in its form or calls of tools, in a model's own dialect."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from octavo.base.errors import InvalidRequestError, UnsupportedError
from octavo.constrain.grammar import TEXT_RULE, Form, checked, literal, whole
from octavo.constrain.schema import json_expression, text_limits
from octavo.frontend.text.dialects.bare_calls import BareCalls
from octavo.frontend.text.dialects.families import Dialect
from octavo.frontend.text.dialects.json_calls import JsonCalls, NamedCalls
from octavo.frontend.text.dialects.python_calls import PythonCalls
from octavo.frontend.text.dialects.tagged_calls import TaggedCalls, types_of

# What stands between thoughts and answer, and between calls.
_GAP = "/[ \\n]{0,3}/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A tool that may be called. field: its schema's place in the request. strict: one that no grammar can say is refused."""

    name: str
    schema: Mapping[str, Any]
    field: str
    strict: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnForm:
    """What a turn must be. form: of its answer, None for any. required: it must be a call. most: calls, None for any number.

    thinking: it begins within thoughts. budget: most tokens of thoughts.
    """

    form: Form | None = None
    tools: Sequence[Tool] = ()
    required: bool = False
    most: int | None = None
    thinking: bool = False
    budget: int | None = None


@dataclass(slots=True)
class TurnGrammar:
    """Writes the grammar of a turn. markers: tokens that stand for no text, by their texts."""

    dialect: Dialect
    markers: Mapping[str, int]
    _rules: list[str] = field(default_factory=lambda: [TEXT_RULE])

    def write(self, turn: TurnForm) -> str | None:
        """Return the grammar, None if nothing is to be kept; raises InvalidRequestError naming the tool at fault."""
        if turn.form is not None:
            self._rules += turn.form.rules
        answer, side = self._harmony(turn) if self.dialect.harmony else self._answer(turn), self.dialect.reasoning
        if side is None and not self.dialect.harmony and turn.budget is not None:
            raise UnsupportedError("thinking_token_budget: this model has no thoughts", field="thinking_token_budget")
        if side is not None and answer is not None and not self.dialect.harmony:
            thoughts = f"{self._until(side.end[0], turn.budget)} {_GAP}"
            answer = f"{thoughts} {answer}" if turn.thinking else f"({self._text(side.begin[0])} {thoughts})? {answer}"
        return None if answer is None else whole(Form(answer, tuple(self._rules)))

    def _answer(self, turn: TurnForm) -> str | None:
        """Return the expression of what follows the thoughts."""
        calls = self.dialect.calls
        if calls is None or not turn.tools:
            return turn.form.expression if turn.form else "<[*]>*" if turn.budget is not None else None
        head, comma, tail = _frame(calls)
        each = "(" + " | ".join(self._call(tool) for tool in turn.tools) + ")"
        inner = each + _repeated(f"{literal(comma)} {each}", turn.most) if comma else each
        before, after = (f"({self._text(one)} {_GAP})?" if one else "" for one in (*calls.noise, "", "")[:2])
        rest = " ".join((inner, self._text(tail)))
        section = f"{self._text(head)} {rest}"
        several = f"{before} {section} {'' if comma else _repeated(f'{_GAP} {section}', turn.most)} {after}"
        if turn.required:
            return several
        if turn.form is not None:
            return f"({turn.form.expression} | {several})"
        if calls.bare:
            return "<[*]>*" if turn.budget is not None else None
        begun = self._until(calls.begin[0], before=before)
        return f"({begun} {self._text(head.removeprefix(calls.begin[0]))} {rest} {after}){'?' if turn.most == 1 else '*'} TEXT"

    def _harmony(self, turn: TurnForm) -> str:
        thoughts = f"{self._until('<|end|>', turn.budget)} {self._text('<|start|>assistant')}"
        lead = thoughts if turn.thinking else f"({self._text('<|channel|>analysis<|message|>')} {thoughts})?"
        calls = [self._call(tool) for tool in turn.tools]
        final = f"{self._text('<|channel|>final<|message|>')} {turn.form.expression if turn.form else 'TEXT'}"
        return f"{lead} ({' | '.join((*calls, *(() if turn.required else (final,))))})"

    def _text(self, written: str) -> str:
        """Return the expression of a text, in which markers are tokens."""
        found = sorted((one for one in self.markers if one in written), key=len, reverse=True)
        parts = re.split("(" + "|".join(map(re.escape, found)) + ")", written) if found else [written]
        return " ".join(f"<[{self.markers[one]}]>" if one in self.markers else literal(one) for one in parts if one)

    def _until(self, end: str, budget: int | None = None, before: str = "") -> str:
        """Return the expression of any text up to `end` and with it; of so many tokens at most."""
        name = f"until_{len(self._rules)}"
        if budget is None and end not in self.markers:
            self._rules.append(f"{name}[lazy]: TEXT {literal(end)}")
            return name
        text = "TEXT"
        if end not in self.markers:
            text = name.upper()
            self._rules.append(f"{text}: /(.|\\n)*/ & {_without(end)}")
        self._rules.append(f"{name}{'' if budget is None else f'[max_tokens={budget}]'}: {text}")
        return f"{name} {before} {self._text(end)}"

    def _value(self, schema: Any, end: str, tool: Tool) -> str:
        """Return the expression of a text that a schema describes, up to `end` and with it."""
        name, limits = f"VALUE_{len(self._rules)}", text_limits(schema)
        token = f" {self._text(end)}" if end in self.markers else ""
        # With its end in one piece: what comes before would take the beginning of it.
        rule = f"{name}: {limits}" if token else f"{name}: ({limits} & {_without(end)}) {literal(end)}"
        try:
            if limits:
                checked(whole(Form(name, (rule,))), tool.field)
                self._rules.append(rule)
                return name + token
        except InvalidRequestError:
            if tool.strict:
                raise
        return self._until(end)

    def _json(self, schema: Any, tool: Tool) -> str:
        """Return the expression of JSON; of a tool that is not strict, as much of its schema as a grammar can say."""
        try:
            found = json_expression(schema, tool.field, lenient=not tool.strict)
            checked(whole(Form(found)), tool.field)
        except InvalidRequestError:
            if tool.strict:
                raise
            return json_expression({"type": "object"} if schema is tool.schema else {}, tool.field)
        return found

    def _call(self, tool: Tool) -> str:
        """Return the expression of one call, without what stands around it."""
        calls, name, schema = self.dialect.calls, tool.name, {"type": "object", **tool.schema}
        tool = Tool(name=name, schema=schema, field=tool.field, strict=tool.strict)
        match calls:
            case _ if self.dialect.harmony:
                head = f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>"
                return f"{self._text(head)} {self._json(schema, tool)}"
            case NamedCalls():
                number = '":" /[0-9]{1,3}/' if calls.prefix else ""
                head = f"{self._text(calls.before + calls.prefix + name)} {number} {self._text(calls.between)}"
                return f"{head} {self._json(schema, tool)} {self._text(calls.behind)}"
            case TaggedCalls():
                head = calls.function[0] + name + calls.function[1] + "\n"
                given = [self._tagged(calls, *one, tool) for one in _arguments(schema)]
                return f"{self._text(head)} {' '.join(given)} {self._text(calls.function_end)}"
            case PythonCalls():
                values = _arguments(schema)
                given = [(f"{literal(f'{key}=')} {self._json(one, tool)}", needed) for key, one, needed in values]
                return f'{literal(f"{name}(")} {_listed(given, ", ")} ")"'
            case BareCalls():
                # A form of its own, whose texts have no quotes.
                return f"{self._text(f'{calls.before}{name}{{')} TEXT"
            case _:
                word = calls.arguments if isinstance(calls, JsonCalls) else "arguments"
                head = f'{{"name": "{name}", "{word}": '
                return f'{literal(head)} {self._json(schema, tool)} "}}"'

    def _tagged(self, calls: TaggedCalls, key: str, schema: Any, needed: bool, tool: Tool) -> str:
        text = types_of(schema) == {"string"}  # As they are read.
        choices = schema.get("enum", [schema["const"]] if "const" in schema else None) if text else None
        head = calls.key[0] + key + (calls.key_text if text and calls.key_text else calls.key[1])
        head += ("\n" if calls.value[0] else "") + calls.value[0] + ("\n" if calls.padded else "")
        end = ("\n" if calls.padded else "") + calls.value[1]
        if text and not choices:
            value = self._value(schema, end, tool)
        else:
            inner = " | ".join(literal(str(one)) for one in choices) if choices else self._json(schema, tool)
            value = f"({inner}) {self._text(end)}"
        return f'({self._text(head)} {value} "\\n"){"" if needed else "?"}'


def _without(text: str) -> str:
    """Return the part of a terminal that forbids a text in it."""
    return f"~(/(.|\\n)*/ {literal(text)} /(.|\\n)*/)"


def _repeated(more: str, most: int | None) -> str:
    """Return the expression of what may follow a first call."""
    return f" ({more})*" if most is None else f" ({more}){{0,{most - 1}}}" if most > 1 else ""


def _frame(calls: Any) -> tuple[str, str, str]:
    """Return what stands before calls, between those that share it ("" if each has its own), and behind."""
    end = next(iter(calls.end), "")
    match calls:
        case JsonCalls():
            opened, closed, comma = ("[", "]", ", ") if calls.listed else ("", "", "")
            return calls.start + calls.lead + opened, comma, closed + calls.lead + end
        case PythonCalls():
            return f"{calls.start}[", ", ", f"]{end}"
        case TaggedCalls() if calls.function[0]:
            return f"{calls.begin[0]}\n", "", f"\n{end}"
        case _:
            return calls.begin[0], "", end


def _arguments(schema: Mapping[str, Any]) -> list[tuple[str, Any, bool]]:
    """Return name, schema and necessity of each argument, the necessary ones first."""
    properties, required = schema.get("properties"), schema.get("required") or ()
    shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    found = [
        (name, {**one, **shared} if isinstance(one, Mapping) else one, name in required)
        for name, one in (properties if isinstance(properties, Mapping) else {}).items()
    ]
    return sorted(found, key=lambda argument: not argument[2])


def _listed(given: Sequence[tuple[str, bool]], comma: str) -> str:
    """Return the expression of a list with commas, of which what is not needed may be left out."""
    sign = literal(comma)
    needed = f" {sign} ".join(one for one, must in given if must)
    others = [one for one, must in given if not must]
    if needed:
        return " ".join((needed, *(f"({sign} {one})?" for one in others)))
    ways = [" ".join((one, *(f"({sign} {other})?" for other in others[n + 1 :]))) for n, one in enumerate(others)]
    return f"({' | '.join(ways)})?" if ways else ""
