"""What a grammar lets a model write is read back as calls that fit their schemas, in every dialect."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema_rs
import llguidance
import numpy as np
import pytest

from octavo.base.errors import InvalidRequestError
from octavo.frontend.text.dialects.bare_calls import BareCalls
from octavo.frontend.text.dialects.events import ToolCallArguments, ToolCallBegin
from octavo.frontend.text.dialects.families import Dialect, families
from octavo.frontend.text.dialects.grammar import Tool, TurnForm, TurnGrammar
from octavo.frontend.text.dialects.parser import TurnParser
from octavo.frontend.text.dialects.tagged_calls import TaggedCalls

EOS = 256
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "n": {"type": "integer", "minimum": 0, "maximum": 9},
        "kind": {"type": "string", "enum": ["cat", "dog"]},
        "more": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    },
    "required": ["city", "n"],
}
CALLING = [one for one in families() if one.calls is not None or one.harmony is not None]
TAGGED: list[Any] = [one for one in CALLING if isinstance(one.calls, TaggedCalls)]


class Bytes:
    tokens = [bytes([index]) for index in range(256)] + [b"</s>"]
    special_token_ids = [EOS]
    eos_token_id = EOS
    bos_token_id = None

    def __call__(self, _text: bytes) -> list[int]:
        return []


TOKENIZER = llguidance.LLTokenizer(llguidance.TokenizerWrapper(Bytes()), n_vocab=257, eos_token=EOS)


def _written(lark: str, seed: int, ending: bytes) -> str:
    """Return a random text of a grammar; free texts are short."""
    matcher, rng, written = llguidance.LLMatcher(TOKENIZER, lark, log_level=0), random.Random(seed), bytearray()
    assert not matcher.is_error(), matcher.get_error()
    free = 0
    while not matcher.is_stopped() and len(written) < 3000:
        bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
        allowed = np.flatnonzero(bits[:257]).tolist()
        if EOS in allowed and (len(allowed) == 1 or rng.random() < 0.5):
            break
        free = free + 1 if len(allowed) > 60 else 0
        some = [one for one in allowed if one < 256 and (one in b"ab" or len(allowed) <= 60)]
        last = ending[(free - 4) % len(ending)] if free > 3 else EOS
        token = last if last in allowed and last != EOS else rng.choice(some or allowed)
        assert matcher.consume_token(token)
        written.append(token)
    return written.decode()


@pytest.mark.parametrize("family", CALLING, ids=lambda one: (one.calls or one.harmony).names[0])
def test_calls_are_read_as_they_must_be_written(family: Dialect) -> None:
    dialect = Dialect(calls=family.calls, harmony=family.harmony)
    tools = [Tool(name="f.x", schema=SCHEMA, field="tools[0]"), Tool(name="g", schema={}, field="tools[1]")]
    lark = TurnGrammar(dialect, {}).write(TurnForm(tools=tools, required=True, most=2))
    assert lark is not None
    if isinstance(family.calls, BareCalls):
        return  # Its arguments are the model's own.
    ending = '"<|end|>' if family.harmony else '"'  # Of free texts.
    if isinstance(family.calls, TaggedCalls):
        ending = "\n" * family.calls.padded + family.calls.value[1]
    names = set()
    for seed in range(8):
        text = _written(lark, seed, ending.encode())
        parser = TurnParser(dialect, {"f.x": SCHEMA, "g": {}}, lambda index, own: "id")
        events = parser.push(text) + parser.end()
        called = [one.name for one in events if isinstance(one, ToolCallBegin)]
        assert 1 <= len(called) <= 2, text
        for index, name in enumerate(called):
            parts = [e.fragment for e in events if isinstance(e, ToolCallArguments) and e.index == index]
            arguments = json.loads("".join(parts))
            jsonschema_rs.validate(SCHEMA if name == "f.x" else {"type": "object"}, arguments)
        names |= set(called)
    assert names == {"f.x", "g"}


LIMITS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "code": {"type": "string", "pattern": "^[A-Z]{2}/[01]+$", "maxLength": 5},
        "note": {"type": "string", "minLength": 2, "maxLength": 4},
        "word": {"type": "string", "pattern": "a|(y|z)"},
        "mark": {"type": "string", "const": "<a/>"},
    },
    "required": ["code", "note", "word", "mark"],
}


@pytest.mark.parametrize("family", TAGGED, ids=lambda one: one.calls.names[0])
def test_texts_between_tags_are_as_long_and_of_the_pattern_that_their_schema_says(family: Dialect) -> None:
    dialect = Dialect(calls=family.calls)
    tool = Tool(name="f", schema=LIMITS, field="tools[0]", strict=True)
    lark = TurnGrammar(dialect, {}).write(TurnForm(tools=[tool], required=True, most=1))
    assert lark is not None
    found = []
    for seed in range(12):
        text = _written(lark, seed, ("\n" * family.calls.padded + family.calls.value[1]).encode())
        events = TurnParser(dialect, {"f": LIMITS}, lambda index, own: "id").push(text)
        found.append(json.loads("".join(one.fragment for one in events if isinstance(one, ToolCallArguments))))
        jsonschema_rs.validate(LIMITS, found[-1])
    assert len({len(one["note"]) for one in found}) > 1
    assert {len(one["code"]) for one in found} == {4, 5}
    # What no terminal can say is refused if it must hold, and left out if not.
    for pattern in ("^a|b$", "(?=a)b"):
        lost = {"type": "object", "properties": {"code": {"type": "string", "pattern": pattern}}}
        for strict in (True, False):
            turn = TurnForm(tools=[Tool(name="f", schema=lost, field="tools[0]", strict=strict)], required=True)
            if strict:
                with pytest.raises(InvalidRequestError, match=r"look-?around") as caught:
                    TurnGrammar(dialect, {}).write(turn)
                assert caught.value.field == "tools[0]"
            else:
                assert TurnGrammar(dialect, {}).write(turn) is not None


@pytest.mark.parametrize("family", CALLING, ids=lambda one: (one.calls or one.harmony).names[0])
def test_whatever_is_asked_of_a_dialect_is_a_grammar(family: Dialect) -> None:
    tools = [Tool(name="f", schema=SCHEMA, field="tools[0]")]
    for turn in (
        TurnForm(tools=tools, thinking=True),
        TurnForm(tools=tools, most=1, budget=5 if family.reasoning or family.harmony else None),
        TurnForm(tools=tools, required=True, most=1),
    ):
        lark = TurnGrammar(family, {}).write(turn)
        if lark is None:
            assert family.calls is not None
            assert family.calls.bare
        else:
            assert llguidance.LLMatcher.validate_grammar(lark) == ""
