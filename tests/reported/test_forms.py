"""Forms that other engines accepted and then failed on, or left out in silence; the vocabulary is padded, as many are."""

from __future__ import annotations

import itertools
import json
import re

import jsonschema_rs
import pytest

from octavo import LLM, SamplingParams
from octavo.base.errors import InvalidRequestError
from tests.reported.padded import NUM_TOKENS, save_padded

NOTHING = {"additionalProperties": False}


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    with LLM(save_padded(tmp_path_factory.mktemp("padded")), max_model_len=512, dtype="float32") as loaded:
        yield loaded


def ask(llm, form, **fields):
    params = {"temperature": 1.0, "seed": 3, "max_tokens": 300, "structured_outputs": form} | fields
    return llm.generate("x", SamplingParams(**params), use_tqdm=False)[0]


def is_well(llm):
    return ask(llm, {"regex": "[ab]{3}"}).outputs[0].finish_reason == "stop"


def test_ids_that_pad_the_vocabulary_fit_no_form(llm):
    for temperature in (1.0, 100.0):
        choice = ask(llm, {"regex": "[a-z]{200}"}, temperature=temperature).outputs[0]
        assert re.fullmatch("[a-z]{200}", choice.text)
        assert max(choice.token_ids) < NUM_TOKENS
    # As many rows as are masked by several threads, where there are some.
    many = llm.generate(
        ["x"] * 6, SamplingParams(temperature=1.0, max_tokens=9, structured_outputs={"regex": "z{5}"}), use_tqdm=False
    )
    assert [one.outputs[0].text for one in many] == ["zzzzz"] * 6


def test_an_object_of_no_schema_has_lines_and_no_endless_white_space(llm):
    found = [ask(llm, {"json_object": True}, temperature=100.0, seed=seed).outputs[0] for seed in range(4)]
    bare = [re.sub(r'"([^"\\]|\\.)*("|\\?$)', "", one.text, flags=re.DOTALL) for one in found]
    assert any("\n" in text for text in bare)
    assert not any(re.search(r"\s{34}|\n\n", text) for text in bare)
    assert all(isinstance(json.loads(one.text), dict) for one in found if one.finish_reason == "stop")


@pytest.mark.parametrize("length", [1, 2, 3])
@pytest.mark.parametrize("place", ["root", "property", "item"])
def test_references_to_nothing_but_themselves_are_refused(llm, length, place):
    names = "abc"[:length]
    circle = {name: {"$ref": f"#/$defs/{after}"} for name, after in zip(names, names[1:] + names[:1], strict=True)}
    into = {"$ref": "#/$defs/a"}
    shape = {
        "root": into,
        "property": {"type": "object", "properties": {"x": into}, "required": ["x"]},
        "item": {"type": "array", "items": into, "minItems": 1},
    }[place]
    with pytest.raises(InvalidRequestError, match="refers to nothing but itself") as caught:
        ask(llm, {"json": {**shape, "$defs": circle}})
    assert caught.value.field == "structured_outputs.json"
    assert is_well(llm)


def test_a_grammar_that_fails_on_its_way_ends_in_an_error(llm):
    """A circle that the check of references does not see: what comes is no whole answer, and must not look like one."""
    circle = [{"$ref": "#/$defs/h/items/1"}, {"$ref": "#/$defs/h/items/0"}]
    schema = {"type": "object", "properties": {"x": {"$ref": "#/$defs/h/items/0"}}, "required": ["x"]}
    output = ask(llm, {"json": schema | {"$defs": {"h": {"items": circle}}}})
    assert output.error is not None
    assert (output.outputs[0].text, output.outputs[0].finish_reason) == ('{"x": ', "error")
    assert is_well(llm)


def test_trees_are_answered(llm):
    leaf = {"anyOf": [{"$ref": "#"}, {"type": "null"}]}
    tree = {"type": "object", "properties": {"v": {"enum": [1, 2]}, "l": leaf, "r": leaf}, "required": ["v", "l", "r"]}
    whole = [ask(llm, {"json": tree | NOTHING}, seed=seed).outputs[0] for seed in range(8)]
    ended = [json.loads(one.text) for one in whole if one.finish_reason == "stop"]
    assert len(ended) >= 3
    for value in ended:
        jsonschema_rs.validate(tree | NOTHING, value)


def test_items_with_alternatives_in_their_pattern_hold_themselves(llm):
    item = {
        "type": "object",
        "properties": {
            "k": {"type": "string", "pattern": "^(a|b|cd)$"},
            "sub": {"type": "array", "items": {"$ref": "#/$defs/item"}, "maxItems": 1},
        },
        "required": ["k"],
        **NOTHING,
    }
    schema = {"type": "array", "items": {"$ref": "#/$defs/item"}, "minItems": 1, "maxItems": 2, "$defs": {"item": item}}
    whole = [ask(llm, {"json": schema}, seed=seed).outputs[0] for seed in range(6)]
    assert sum(one.finish_reason == "stop" for one in whole) >= 3
    for one in whole:
        if one.finish_reason == "stop":
            jsonschema_rs.validate(schema, json.loads(one.text))


def test_references_into_lists_are_followed(llm):
    shape = {"l": {"$ref": "#/anyOf/0"}, "x": {"anyOf": [{"const": 5}, {"$ref": "#/anyOf/1/properties/l"}]}}
    pair = {"type": "object", "properties": shape, "required": ["l", "x"], **NOTHING}
    found = {ask(llm, {"json": {"anyOf": [{"type": "null"}, pair]}}, seed=seed).outputs[0].text for seed in range(20)}
    assert found <= {"null", '{"l": null, "x": 5}', '{"l": null, "x": null}'}
    assert len(found) > 1


# What may come beside an action: one of two.
ACTION = {"type": "object", "properties": {"action": {"enum": ["go", "stop"]}}, "required": ["action"]}
BESIDE = [
    {"properties": {"x": {"const": 1}}, "required": ["x"]},
    {"properties": {"y": {"const": 2}}, "required": ["y"]},
]


def test_alternatives_beside_properties_hold_as_well(llm):
    schema = ACTION | {"anyOf": BESIDE}
    whole = [ask(llm, {"json": schema}, seed=seed).outputs[0] for seed in range(12)]
    ended = [json.loads(one.text) for one in whole if one.finish_reason == "stop"]
    assert len(ended) >= 2
    for value in ended:
        jsonschema_rs.validate(schema, value)


@pytest.mark.parametrize(
    "alternatives",
    [
        # Both may be true.
        {"oneOf": BESIDE},
        # Neither leaves room for the action.
        {"oneOf": [one | NOTHING for one in BESIDE]},
        {"anyOf": [one | NOTHING for one in BESIDE]},
    ],
)
def test_alternatives_that_no_grammar_can_say_are_refused(llm, alternatives):
    with pytest.raises(InvalidRequestError, match=r"oneOf|nsatisfiable"):
        ask(llm, {"json": ACTION | alternatives})
    assert is_well(llm)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "patternProperties": {"^s[0-9]$": {"type": "boolean"}}, "minProperties": 1, **NOTHING},
        {
            "type": "object",
            "properties": {
                "date": {"type": "string", "pattern": r"^\d{4}-\d{2}$"},
                "word": {"type": "string", "pattern": r"^\w{2}$"},
                "day": {"type": "string", "format": "date"},
            },
            "required": ["date", "word", "day"],
            **NOTHING,
        },
    ],
    ids=["names-by-pattern", "classes-and-formats"],
)
def test_patterns_hold(llm, schema):
    whole = [ask(llm, {"json": schema}, seed=seed).outputs[0] for seed in range(8)]
    ended = [json.loads(one.text) for one in whole if one.finish_reason == "stop"]
    assert len(ended) >= 3
    for value in ended:
        jsonschema_rs.validate(schema, value, validate_formats=True)
    assert {one.finish_reason for one in whole} <= {"stop", "length"}


def test_a_name_that_a_pattern_says_again_gives_a_whole_answer_or_an_error(llm):
    schema = {
        "type": "object",
        "properties": {"score": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["score"],
        "patternProperties": {"^score$": {"type": "integer"}},
        **NOTHING,
    }
    outputs = [ask(llm, {"json": schema}, seed=seed) for seed in range(8)]
    assert {one.outputs[0].finish_reason for one in outputs} <= {"stop", "error"}
    for one in outputs:
        assert (one.error is None) == (one.outputs[0].finish_reason == "stop")
        if one.error is None:
            jsonschema_rs.validate(schema, json.loads(one.outputs[0].text))


def test_the_white_space_is_what_was_asked_for(llm):
    schema = {"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}}, "required": ["a", "b"], **NOTHING}
    # A model that would write spaces and lines only.
    bias = {ord(" "): 50.0, ord("\n"): 50.0}
    plain = ask(llm, {"json": schema}, logit_bias=bias).outputs[0]
    assert (plain.text, plain.finish_reason) == ('{"a": 1, "b": 2}', "stop")
    spaced = ask(llm, {"json": schema, "whitespace_pattern": "[ ]?"}, logit_bias=bias).outputs[0]
    assert spaced.text == '{ "a" : 1 , "b" : 2 }'
    with pytest.raises(InvalidRequestError, match="unclosed group"):
        ask(llm, {"json": schema, "whitespace_pattern": "("})


BROKEN = [
    {"json": {"type": "object", "properties": {"foo": "bar"}}},
    {"json": {"type": "string", "pattern": r"^\p{L}\-\e$"}},
    {"json": ""},
    {"json": False},
    {"json_object": False},
    {"regex": "("},
    {"grammar": "root ::= foo bar ::="},
    {"structural_tag": ""},
]


@pytest.mark.parametrize("form", BROKEN, ids=str)
def test_a_broken_form_is_refused_and_the_next_request_answered(llm, form):
    with pytest.raises(InvalidRequestError, match="structured_outputs") as caught:
        ask(llm, form)
    assert caught.value.field.startswith("structured_outputs")
    assert is_well(llm)


def test_requests_after_many_forms_are_as_before(llm):
    plain = SamplingParams(temperature=1.0, seed=9, max_tokens=12, ignore_eos=True)
    before = llm.generate("x", plain, use_tqdm=False)[0].outputs[0].token_ids
    forms = [{"regex": f"[a-c]{{{size}}}"} for size in range(1, 9)]
    asked = [
        plain if form is None else SamplingParams(temperature=1.0, max_tokens=12, structured_outputs=form)
        for form in itertools.chain.from_iterable((form, None) for form in forms * 8)
    ]
    together = [one.outputs[0] for one in llm.generate(["x"] * len(asked), asked, use_tqdm=False)]
    assert {len(one.text) for one in together[::2]} == set(range(1, 9))
    assert all(one.token_ids == before for one in together[1::2])
    assert llm.generate("x", plain, use_tqdm=False)[0].outputs[0].token_ids == before
    stats = llm.get_stats()
    assert (stats.num_running, stats.used_slots, stats.pending_pages) == (0, 0, 0)
