"""Answers that must have a form, through `LLM`, on a tiny random model that would never find one by itself."""

from __future__ import annotations

import contextlib
import json
import re
import time

import jsonschema_rs
import pytest

from octavo import LLM, SamplingParams, StructuredOutputsParams
from octavo.base.errors import InvalidRequestError
from tests.equivalence.models import SIZES
from tests.frontend.bytes_model import EOS, TEMPLATE, make_core
from tests.models.oracle import make_oracle

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
}
TAG = {"triggers": ["<f"], "structures": [{"begin": "<f>", "schema": {"const": 1}, "end": "</f>"}]}


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bytes")
    make_oracle("llama", {**SIZES, "vocab_size": 270, "eos_token_id": EOS}).save_pretrained(folder)
    make_core().save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    with LLM(folder, max_model_len=512, dtype="float32") as loaded:
        yield loaded


def ask(llm, form, prompts=("x",), **fields):
    params = SamplingParams(**({"temperature": 1.0, "seed": 7, "max_tokens": 200, "structured_outputs": form} | fields))
    return [choice for output in llm.generate(list(prompts), params, use_tqdm=False) for choice in output.outputs]


def test_every_form_is_kept(llm):
    for choice in ask(llm, {"json": SCHEMA}, n=4):
        jsonschema_rs.validate(SCHEMA, json.loads(choice.text))
        assert choice.finish_reason == "stop"
        assert "\n" not in choice.text
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    assert json.loads(ask(llm, {"json": json.dumps(schema)})[0].text)["a"] in (True, False)
    assert re.fullmatch(r"\d{3}/[xy]+;", ask(llm, {"regex": r"\d{3}/[xy]+;"}, ignore_eos=True)[0].text, re.ASCII)
    assert {one.text for one in ask(llm, {"choice": ['a"b', "ü\n"]}, n=20)} == {'a"b', "ü\n"}
    lark = {"grammar": 'start: ("p" | other){4} "start"\nother: /[q-r]/'}
    assert re.fullmatch("[pqr]{4}start", ask(llm, lark)[0].text)
    assert re.fullmatch("[0-9]:[0-9]", ask(llm, {"grammar": 'root ::= digit ":" digit\ndigit ::= [0-9]'})[0].text)
    assert ask(llm, {"lark": 'start: "l"'})[0].text == "l"


def test_a_tag_has_its_form_and_text_is_free(llm):
    # A random model writes no tag by itself.
    (free,) = ask(llm, {"structural_tag": TAG}, max_tokens=40)
    assert free.finish_reason == "length"
    (tagged,) = ask(llm, {"structural_tag": TAG}, max_tokens=60, temperature=10.0, logit_bias={60: 100.0, 102: 100.0})
    between, *tags = tagged.text.split("<f")
    assert set(between) <= {"<", "f"}
    assert len(tags) > 1
    assert all(one.startswith(">1</f>") for one in tags[:-1])


def test_an_answer_may_end_where_its_form_does(llm):
    (ended,) = ask(llm, {"regex": "ab"}, min_tokens=5)
    assert (ended.text, ended.finish_reason, ended.stop_reason) == ("ab", "stop", None)
    cut = ask(llm, {"regex": "[ab]{9}"}, max_tokens=4)[0]
    assert (len(cut.text), cut.finish_reason) == (4, "length")
    assert ask(llm, {"regex": "[ab]*c"}, stop=["c"], include_stop_str_in_output=True)[0].text[-1] == "c"
    # Nothing is left where the request forbids what the form needs.
    output = llm.generate("x", SamplingParams(structured_outputs={"regex": "a"}, allowed_token_ids=[ord("b")]))[0]
    assert output.error is not None
    assert "no token is left" in output.error


def test_rows_with_and_without_a_form_do_not_disturb_each_other(llm):
    form = {"json": SCHEMA}
    kinds = [form, None, {"regex": "[ab]+c"}, None] * 4
    params = [
        SamplingParams(temperature=1.0, seed=seed, max_tokens=48, structured_outputs=kind, logprobs=1, ignore_eos=True)
        for seed, kind in enumerate(kinds)
    ]
    together = llm.generate(["x"] * 16, params, use_tqdm=False)
    alone = [llm.generate("x", one, use_tqdm=False)[0] for one in params]
    assert [output.outputs[0].token_ids for output in together] == [one.outputs[0].token_ids for one in alone]
    for output in together:
        assert len(output.outputs[0].logprobs or ()) == len(output.outputs[0].token_ids)


@pytest.mark.parametrize(
    ("form", "word"),
    [
        ({"json": {"type": "array", "contains": {"type": "integer"}}}, "contains"),
        ({"json": {"type": "string", "format": "iri"}}, "iri"),
        ({"json": {"type": "string", "pattern": "(?=a)b"}}, "look-around"),
        ({"json": {"type": "what"}}, "what"),
        ({"json": False}, "no value"),
        ({"json": {"minimum": 3, "maximum": 2, "type": "integer"}}, "nsatisfiable"),
        ({"json": "{"}, "no JSON schema"),
        ({"json": {"items": {"$ref": "http://somewhere/x"}}}, "somewhere"),
        ({"json": {"description": "x" * 300_000}}, "characters"),
        ({"regex": "(a"}, "unclosed group"),
        ({"grammar": "start: unknown"}, "unknown"),
        ({"grammar": "root ::= ("}, "grammar"),
        ({"structural_tag": {"structures": []}}, "structural tag"),
        ({"structural_tag": TAG | {"triggers": ["<g"]}}, "triggers"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_no_grammar_can_say_is_refused(llm, form, word):
    with pytest.raises(InvalidRequestError, match=re.escape(word)) as caught:
        ask(llm, form)
    assert caught.value.field.startswith("structured_outputs")


def test_nested_and_large_forms_cost_a_bounded_time(llm):
    deep = {"type": "string"}
    for _ in range(200):
        deep = {"type": "array", "items": deep}
    began = time.monotonic()
    with pytest.raises(InvalidRequestError, match="levels deep"):
        ask(llm, {"json": deep})
    for pattern in ("(a{1,1000}){1,1000}", "(.*a){40}b" * 200, "(x+x+)+y"):
        with contextlib.suppress(InvalidRequestError):
            ask(llm, {"regex": pattern}, max_tokens=10)
    assert time.monotonic() - began < 10
    assert ask(llm, {"regex": "a"})[0].text == "a"


@pytest.mark.parametrize(
    "given", [{}, {"json": {}, "regex": "a"}, {"choice": []}, {"choice": [1]}, {"regex": ""}, {"json": 3}, {"what": 1}]
)
def test_parameters_of_a_form_are_checked(given):
    with pytest.raises(InvalidRequestError, match="structured_outputs"):
        SamplingParams(structured_outputs=given)


def test_objects_of_a_form_are_as_good_as_dictionaries(llm):
    form = StructuredOutputsParams(regex="a{3}")
    assert ask(llm, form)[0].text == "aaa"
    assert SamplingParams(structured_outputs={"regex": "a{3}"}).structured_outputs == form
