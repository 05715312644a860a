"""The rules that hold in every dialect: what is a call, what is text, what is thought, and what may wait."""

from __future__ import annotations

import json

import pytest

from octavo.frontend.text.dialects.events import Event, ReasoningDelta, TextDelta, ToolCallBegin
from octavo.frontend.text.dialects.families import find_dialect
from tests.host.text.dialects.transcripts import RUN, TRANSCRIPTS, call, dialect_of, events_of, merged, parser, said

HERMES = find_dialect("hermes", "qwen3", None)
CODER = find_dialect("qwen3_coder", "none", None)
LLAMA = find_dialect("llama3_json", "none", None)
GEMMA = find_dialect("gemma4", "none", None)
PYTHON = find_dialect("pythonic", "none", None)
HARMONY = find_dialect("openai", "none", None)


@pytest.mark.parametrize(
    "text",
    [
        "Use <tool_call> for that.",
        "```\n<tool_call>\n</tool_call>\n```",
        "<tool_cal",
        "a </tool_call> b",
        "a <think>b</think>",
        '<tool_call>\n{"name": "run"',
        '<tool_call>\n{"arguments": {"a": 1}}\n</tool_call>',
        '<tool_call>\n{"name": 5, "arguments": {}}',
        '<tool_call>[{"a": {}}]',
        "<tool_call><tool_call></tool_call",
        " \n ",
    ],
)
def test_what_is_no_call_comes_out_as_it_is(text: str) -> None:
    assert events_of(HERMES, list(text)) == [said(text)]


@pytest.mark.parametrize(
    ("dialect", "text"),
    [
        (LLAMA, '{"name": "Bob", "age": 3}'),
        (LLAMA, '{"name": "run", "age": 3}'),
        (LLAMA, '{"name": "unknown", "parameters": {}}'),
        (LLAMA, 'Here: {"name": "run", "parameters": {}}'),
        (LLAMA, '{"a": [1, 2'),
        (PYTHON, "[1] says so"),
        (PYTHON, "[unknown(a=1)]"),
        (PYTHON, "[run(1)]"),
        (PYTHON, "[run(command=os.name)]"),
        (PYTHON, "[run(command='a"),
        (PYTHON, "[run(" + "(" * 500),
        (CODER, "<tool_call>\n<function=>\n</function>"),
        (CODER, "<tool_call>\nnow"),
        (CODER, "<function=a b>"),
    ],
)
def test_without_a_doubt_or_not_at_all(dialect: object, text: str) -> None:
    assert events_of(dialect, list(text)) == [said(text)]  # pyright: ignore[reportArgumentType]


def test_a_text_after_a_failed_call_may_have_one() -> None:
    found = events_of(HERMES, [f'<tool_call> no <tool_call>{{"name": "run", "arguments": {RUN}}}</tool_call> end'])
    assert found == [said("<tool_call> no "), *call(0, "run", RUN), said("end")]


def test_too_many_brackets_and_words_behind_arguments() -> None:
    found = events_of(HERMES, ['<tool_call>{"name": "now", "arguments": {}}}\n</tool_call>'])
    assert found == call(0, "now", "{}")
    found = events_of(HERMES, ['<tool_call>{"name": "now", "arguments": {}} and so</tool_call> on'])
    assert found == [*call(0, "now", "{}"), said("and soon")]


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ('{"a": tru!e, b}', '{"a": tru!e, b}}'),
        ('{"a": 1]', '{"a": 1]}'),
        ("null", "{}"),
        ('"{\\"a\\": 1}"', '{"a": 1}'),
        ('"text"', '"text"'),
        ('{"a": "x\ny\t"}', '{"a": "x\\ny\\t"}'),
    ],
)
def test_arguments_that_are_no_object(written: str, arguments: str) -> None:
    text = f'<tool_call>{{"name": "run", "arguments": {written}}}</tool_call>'
    assert events_of(HERMES, list(text)) == call(0, "run", arguments)


def test_a_call_that_is_cut_off_in_its_arguments() -> None:
    whole = f'<tool_call>{{"name": "run", "arguments": {RUN}}}'
    found = events_of(HERMES, [whole[:-8]])
    assert found == call(0, "run", RUN[:-7])
    found = events_of(CODER, ["<tool_call><function=run><parameter=command>\nls"])
    assert found == call(0, "run", '{"command": "ls')


def test_gemma_s_arguments_that_go_wrong() -> None:
    assert events_of(GEMMA, ['<|tool_call>call:run{a:1,"<tool_call|>b']) == [
        *call(0, "run", '{"a": 1, "\\""'),
        said("b"),
    ]
    assert events_of(GEMMA, ['<|tool_call>call:run{a:<|"|>x']) == call(0, "run", '{"a": "x')
    assert events_of(GEMMA, ["<|tool_call>run this"]) == [said("<|tool_call>run this")]


def test_arguments_stream_as_they_come() -> None:
    reads = parser(HERMES)
    reads.push('<tool_call>{"name": "run", ')
    assert reads.push('"arguments": {"co')[1:] != []
    assert merged(reads.push('mmand": "l')) == [call(0, "run", 'mmand": "l')[1]]
    reads = parser(CODER)
    reads.push("<function=run><parameter=command>\nl")
    assert merged(reads.push("s -l")) == [call(0, "run", "s -l")[1]]


@pytest.mark.parametrize("row", TRANSCRIPTS, ids=[f"{row[0]}-{i}" for i, row in enumerate(TRANSCRIPTS)])
def test_text_waits_no_longer_than_a_marker(row: tuple[str, str, str, list[Event]]) -> None:
    dialect = dialect_of(row[0], row[1])
    reads = parser(dialect, thinking=False)
    longest = max(len(text) for text in dialect.texts.splitlines())
    written = "Once [upon] a (time) there {was} 5 < 6 > 4 | 3 ◁ <｜ <|"
    shown = "".join(event.text for letter in written for event in reads.push(letter) if isinstance(event, TextDelta))
    assert written.startswith(shown)
    assert len(written) - len(shown) < longest


def test_values_are_what_the_schema_says() -> None:
    schemas = {
        "f": {
            "properties": {
                "text": {"type": "string"},
                "number": {"type": "number"},
                "either": {"type": ["string", "null"]},
                "flag": {"type": "boolean"},
                "pick": {"enum": ["1", "2"]},
                "list": {"type": "array"},
            }
        }
    }
    values = {
        "text": "5",
        "number": "5",
        "either": "null",
        "flag": "True",
        "pick": "1",
        "list": "['a', 'b']",
        "new": "6",
    }
    text = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    found = events_of(CODER, [f"<tool_call>\n<function=f>\n{text}</function>\n</tool_call>"], schemas=schemas)
    expected = {"text": "5", "number": 5, "either": None, "flag": True, "pick": "1", "list": ["a", "b"], "new": 6}
    assert json.loads(found[1].fragment) == expected  # pyright: ignore[reportAttributeAccessIssue]
    for odd in ("NaN", "[1", "x", "1e999", "{'a': 1, **b}", "[" * 10_000):
        found = events_of(CODER, [f"<function=f><parameter=list>{odd}</parameter></function>"], schemas=schemas)
        assert json.loads(found[1].fragment) == {"list": odd}  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    "schema",
    [
        5,
        [],
        {"type": None},
        {"type": 5},
        {"type": [5, None]},
        {"anyOf": 5},
        {"oneOf": [5, {"enum": 7}]},
        {"enum": {"a": 1}},
    ],
)
def test_schemas_that_are_none(schema: object) -> None:
    schemas = {"f": {"properties": {"a": schema}}, "g": {"properties": 5}}
    text = "<function=f><parameter=a>1</parameter></function><function=g><parameter=a>x</parameter></function>"
    assert events_of(CODER, [text], schemas=schemas) == [*call(0, "f", '{"a": 1}'), *call(1, "g", '{"a": "x"}')]
    deep: object = {"type": "string"}
    for _ in range(900):
        deep = {"anyOf": [deep]}
    found = events_of(CODER, [text[: text.index("<function=g>")]], schemas={"f": {"properties": {"a": deep}}})
    assert found == call(0, "f", '{"a": 1}')


def test_without_tools_there_is_no_call() -> None:
    text = '<tool_call>{"name": "run", "arguments": {}}</tool_call>'
    assert events_of(HERMES, [text], schemas={}) == [said(text)]
    written = '<|channel|>commentary to=functions.run<|message|>{"a": 1}<|call|>'
    assert events_of(HARMONY, [written], schemas={}) == [said('{"a": 1}')]


def test_markers_that_are_tokens_mean_what_they_say_anywhere() -> None:
    tokens = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
    found = events_of(HERMES, ["a<think>b</think>c</think></tool_call>d"], tokens=tokens)
    assert found == [said("a"), ReasoningDelta("b"), said("cd")]
    found = events_of(HERMES, ['b<tool_call>{"name": "now"}'], tokens=tokens, thinking=True)
    assert found == [ReasoningDelta("b"), *call(0, "now", "{}")]


def test_thoughts_without_end_and_twice_begun() -> None:
    assert events_of(HERMES, ["<think>\na"], thinking=True) == [ReasoningDelta("a")]
    assert events_of(HERMES, ["a </thin"], thinking=True) == [ReasoningDelta("a </thin")]
    assert events_of(find_dialect("none", "deepseek_r1", None), ["a"]) == [ReasoningDelta("a")]
    assert events_of(find_dialect("none", "deepseek_r1", None), ["a"], thinking=False) == [said("a")]


def test_harmony_beside_its_rules() -> None:
    assert events_of(HARMONY, ["Plain words."]) == [said("Plain words.")]
    assert events_of(HARMONY, ["still<|end|><|start|>assistant<|channel|>final<|message|>a"], thinking=True) == [
        ReasoningDelta("still"),
        said("a"),
    ]
    browser = "<|channel|>analysis to=browser.search<|message|>{}<|call|>"
    assert events_of(HARMONY, [browser]) == [ReasoningDelta("{}")]
    assert events_of(HARMONY, ["<|channel|>commentary to=functions.now<|message|><|call|>"]) == call(0, "now", "{}")
    assert events_of(HARMONY, ["<|channel|>analysis<|message|>a<|start|>assistant<|channel|>final<|message|>b"]) == [
        ReasoningDelta("a"),
        said("b"),
    ]


def test_only_the_first_call_if_there_may_be_one() -> None:
    row = TRANSCRIPTS[0]
    found = events_of(dialect_of(row[0], row[1]), list(row[2]), one_call=True)
    assert [event.name for event in found if isinstance(event, ToolCallBegin)] == ["get_weather"]


def test_long_arguments_and_many_calls() -> None:
    """G02: whatever the length, nothing is dropped, and time does not grow with its square."""
    text = json.dumps({"command": "x{" * 100_000}, ensure_ascii=False)
    written = "".join(f'<tool_call>\n{{"name": "run", "arguments": {text}}}\n</tool_call>\n' for _ in range(3))
    found = events_of(HERMES, [written[i : i + 5] for i in range(0, len(written), 5)])
    assert found == [event for index in range(3) for event in call(index, "run", text)]
