"""What models of each family write, and what it means: (name of the calls' dialect, of the reasoning's, text, events)."""

from __future__ import annotations

from typing import Any

from octavo.frontend.text.dialects.events import (
    Event,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallBegin,
    ToolCallEnd,
)
from octavo.frontend.text.dialects.families import Dialect, find_dialect
from octavo.frontend.text.dialects.parser import TurnParser

SCHEMAS: dict[str, dict[str, Any]] = {
    "get_weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "exact": {"type": "boolean"},
            "where": {"anyOf": [{"type": "object"}, {"type": "null"}]},
        },
    },
    "run": {"type": "object", "properties": {"command": {"type": "string"}, "tries": {"type": "number"}}},
    "now": {"type": "object", "properties": {}},
}


def parser(dialect: Dialect, **options: Any) -> TurnParser:
    schemas = options.pop("schemas", SCHEMAS)
    return TurnParser(dialect, schemas, lambda index, own: own or f"id{index}", **options)


def merged(events: list[Event]) -> list[Event]:
    """Put together what the cuts have divided."""
    found: list[Any] = []
    for event in events:
        last = found[-1] if found else None
        if isinstance(event, (TextDelta, ReasoningDelta)) and type(last) is type(event):
            found[-1] = type(event)(last.text + event.text)
        elif isinstance(event, ToolCallArguments) and isinstance(last, ToolCallArguments):
            found[-1] = ToolCallArguments(event.index, last.fragment + event.fragment)
        else:
            found.append(event)
    return found


def events_of(dialect: Dialect, pieces: list[str], **options: Any) -> list[Event]:
    reads = parser(dialect, **options)
    return merged([event for piece in pieces for event in reads.push(piece)] + reads.end())


def call(index: int, name: str, arguments: str, own_id: str = "") -> list[Event]:
    return [ToolCallBegin(index, own_id or f"id{index}", name), ToolCallArguments(index, arguments), ToolCallEnd(index)]


WEATHER = '{"city": "Köln \\"Süd\\"", "days": 3, "where": {"a": [1, {"b": null}]}}'
# An unbalanced brace, an escaped quote and a marker's look-alike in a string.
RUN = '{"command": "mkdir x/{a,b \\"]}\\" </tool", "tries": 1.5e1}'
BOTH = [*call(0, "get_weather", WEATHER), *call(1, "run", RUN)]
THOUGHT = ReasoningDelta("Is {it} <b>warm</b>?\n")


def said(text: str) -> TextDelta:
    return TextDelta(text)


_FUNCTIONS = (
    "<function=get_weather>\n<parameter=city>\nKöln\n\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
    "<parameter=exact>\nTrue\n</parameter>\n<parameter=where>\n{'a': [1, None]}\n</parameter>\n</function>"
)
_FUNCTIONS_CALL = '{"city": "Köln\\n", "days": 3, "exact": true, "where": {"a": [1, null]}}'
_LIST = f'[{{"name": "get_weather", "arguments": {WEATHER}}}, {{"name": "run", "arguments": {RUN}}}]'
_PYTHON = """[get_weather(city='Köln "Süd"', days=-3, where={"a": (1, None)}), run(command="a(b] \\"", tries=1.5)]"""
_PYTHON_CALLS = [
    *call(0, "get_weather", '{"city": "Köln \\"Süd\\"", "days": -3, "where": {"a": [1, null]}}'),
    *call(1, "run", '{"command": "a(b] \\"", "tries": 1.5}'),
]
_DEEPSEEK = (
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{}<｜tool▁call▁end｜>\n"
    "<｜tool▁call▁begin｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
)

TRANSCRIPTS: list[tuple[str, str, str, list[Event]]] = [
    (
        "hermes",
        "qwen3",
        f'<think>\nIs {{it}} <b>warm</b>?\n</think>\n\nLook:\n<tool_call>\n{{"name": "get_weather", "arguments": {WEATHER}}}\n'
        f'</tool_call>\n<tool_call>\n{{"arguments": {RUN}, "name": "run"}}\n</tool_call>',
        [THOUGHT, said("Look:\n"), *BOTH],
    ),
    (
        "llama3_json",
        "none",
        f' {{"name": "get_weather", "parameters": {WEATHER}}}; {{"name": "run", "parameters": {RUN}}}',
        BOTH,
    ),
    (
        "llama3_json",
        "none",
        f'<|python_tag|>{{"type": "function", "name": "run", "parameters": {RUN}}}',
        call(0, "run", RUN),
    ),
    ("llama4_json", "none", _LIST.replace("arguments", "parameters"), BOTH),
    ("llama4_pythonic", "none", f"<|python_start|>{_PYTHON}<|python_end|>", _PYTHON_CALLS),
    ("pythonic", "none", _PYTHON, _PYTHON_CALLS),
    ("lfm2", "none", f"<|tool_call_start|>{_PYTHON}<|tool_call_end|>Done.", [*_PYTHON_CALLS, said("Done.")]),
    (
        "olmo3",
        "qwen3",
        "<think>No.</think><function_calls>\nnow()\nrun(command='''a''')\n</function_calls>",
        [ReasoningDelta("No."), *call(0, "now", "{}"), *call(1, "run", '{"command": "a"}')],
    ),
    (
        "mistral",
        "mistral",
        f"[THINK]Is {{it}} <b>warm</b>?\n[/THINK] Well.[TOOL_CALLS] {_LIST}",
        [THOUGHT, said("Well."), *BOTH],
    ),
    ("mistral", "mistral", f"[TOOL_CALLS]get_weather[ARGS]{WEATHER}[TOOL_CALLS]run{RUN}", BOTH),
    ("mistral", "none", f"[TOOL_CALLS]run[CALL_ID]a1B2c3D4e[ARGS]{RUN}", call(0, "run", RUN, "a1B2c3D4e")),
    (
        "qwen3_coder",
        "none",
        f"First.\n<tool_call>\n{_FUNCTIONS}\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
        [said("First.\n"), *call(0, "get_weather", _FUNCTIONS_CALL), *call(1, "now", "{}")],
    ),
    ("qwen3_coder", "none", _FUNCTIONS, call(0, "get_weather", _FUNCTIONS_CALL)),
    (
        "seed_oss",
        "seed_oss",
        f"<seed:think>a</seed:think>\n<seed:tool_call>\n{_FUNCTIONS}\n</seed:tool_call>",
        [ReasoningDelta("a"), *call(0, "get_weather", _FUNCTIONS_CALL)],
    ),
    (
        "deepseek_v3",
        "deepseek_r1",
        "Hm.</think>"
        + _DEEPSEEK.format(
            f"function<｜tool▁sep｜>get_weather\n```json\n{WEATHER}\n```",
            f"function<｜tool▁sep｜>run\n```json\n{RUN}\n```",
        ),
        [ReasoningDelta("Hm."), *BOTH],
    ),
    (
        "deepseek_v31",
        "qwen3",
        "Now." + _DEEPSEEK.format(f"get_weather<｜tool▁sep｜>{WEATHER}", f"run<｜tool▁sep｜>{RUN}"),
        [said("Now."), *BOTH],
    ),
    (
        "deepseek_v32",
        "qwen3",
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city" string="true">7\n'
        '</｜DSML｜parameter>\n<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
        '<｜DSML｜invoke name="now">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
        [*call(0, "get_weather", '{"city": "7\\n", "days": 3}'), *call(1, "now", "{}")],
    ),
    (
        "glm45",
        "glm45",
        "\n<think>a</think>\nb\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>5</arg_value>\n<arg_key>days</arg_key>\n"
        "<arg_value>5</arg_value>\n</tool_call>\n<tool_call>now\n</tool_call>",
        [ReasoningDelta("a"), said("b\n"), *call(0, "get_weather", '{"city": "5", "days": 5}'), *call(1, "now", "{}")],
    ),
    (
        "kimi_k2",
        "kimi_k2",
        f"◁think▷a◁/think▷b<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
        f"{WEATHER}<|tool_call_end|><|tool_call_begin|>functions.run:1<|tool_call_argument_begin|>{RUN}<|tool_call_end|>"
        "<|tool_calls_section_end|>",
        [
            ReasoningDelta("a"),
            said("b"),
            *call(0, "get_weather", WEATHER, "functions.get_weather:0"),
            *call(1, "run", RUN, "functions.run:1"),
        ],
    ),
    (
        "minimax_m2",
        "minimax_m2",
        '<think>a</think>\n\n<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Köln</parameter>\n'
        '<parameter name="where">null</parameter>\n</invoke>\n<invoke name="run">\n'
        '<parameter name="command">ls "x"\n</parameter>\n'
        "</invoke>\n</minimax:tool_call>",
        [
            ReasoningDelta("a"),
            *call(0, "get_weather", '{"city": "Köln", "where": null}'),
            *call(1, "run", '{"command": "ls \\"x\\"\\n"}'),
        ],
    ),
    (
        "hunyuan_a13b",
        "hunyuan_a13b",
        f"<think>\na</think>\n<answer>\nb<tool_calls>{_LIST}</tool_calls>\n</answer>",
        [ReasoningDelta("a"), said("b"), *BOTH],
    ),
    ("jamba", "none", f"<tool_calls>{_LIST}</tool_calls>", BOTH),
    (
        "granite",
        "granite",
        f"Here is my thought process: a Here's my response: b<|tool_call|>{_LIST}",
        [ReasoningDelta("a "), said("b"), *BOTH],
    ),
    ("granite-20b-fc", "none", f'<function_call> {{"name": "run", "arguments": {RUN}}}', call(0, "run", RUN)),
    ("phi4_mini_json", "none", f"functools{_LIST}", BOTH),
    ("phi4_mini_json", "none", f"<|tool_call|>{_LIST}<|/tool_call|>", BOTH),
    (
        "internlm",
        "none",
        f'a<|action_start|><|plugin|>{{"name": "run", "parameters": {RUN}}}<|action_end|>',
        [said("a"), *call(0, "run", RUN)],
    ),
    (
        "longcat",
        "longcat",
        f'<longcat_think>a</longcat_think><longcat_tool_call>{{"name": "run", "arguments": {RUN}}}</longcat_tool_call>',
        [ReasoningDelta("a"), *call(0, "run", RUN)],
    ),
    (
        "cohere_command3",
        "cohere_command3",
        f'<|START_THINKING|>a<|END_THINKING|><|START_ACTION|>[{{"tool_call_id": "0", "tool_name": "run", "parameters": {RUN}}}]'
        "<|END_ACTION|>",
        [ReasoningDelta("a"), *call(0, "run", RUN)],
    ),
    (
        "none",
        "cohere_command3",
        "<|START_THINKING|>a<|END_THINKING|><|START_RESPONSE|>b<|END_RESPONSE|>",
        [ReasoningDelta("a"), said("b")],
    ),
    ("none", "ernie45", "<think>a</think>\n<response>\nb</response>", [ReasoningDelta("a"), said("b")]),
    ("xlam", "none", _LIST, BOTH),
    (
        "gemma4",
        "gemma4",
        '<|channel>thought\nHm.<channel|>a<|tool_call>call:get_weather{city:<|"|>Köln "{,<|"|>,days:3,where:{a:[1,{b:null}]}}'
        "<tool_call|><|tool_call>call:now{}<tool_call|>",
        [
            ReasoningDelta("Hm."),
            said("a"),
            *call(0, "get_weather", '{"city": "Köln \\"{,", "days": 3, "where": {"a": [1, {"b": null}]}}'),
            *call(1, "now", "{}"),
        ],
    ),
    (
        "functiongemma",
        "none",
        "<start_function_call>call:run{command:<escape>ls\n<escape>,tries:1.5, x:yes}<end_function_call>",
        call(0, "run", '{"command": "ls\\n", "tries": 1.5, "x": "yes"}'),
    ),
    (
        "openai",
        "openai_gptoss",
        "<|channel|>analysis<|message|>Is {it} <b>warm</b>?\n<|end|><|start|>assistant<|channel|>commentary<|message|>"
        "I look.<|end|>"
        f"<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{WEATHER}<|call|>"
        f"<|start|>assistant to=functions.run<|channel|>commentary json<|message|>{RUN}<|call|>"
        "<|start|>assistant<|channel|>final<|message|>Warm.<|return|>",
        [THOUGHT, said("I look."), *BOTH, said("Warm.")],
    ),
]


def dialect_of(calls: str, reasoning: str) -> Dialect:
    return find_dialect(calls, reasoning, None)
