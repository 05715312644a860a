"""Tools and thoughts over HTTP: streamed and whole answers agree, protocols agree, and the table of finish reasons.

Of the reported faults G01 to G20: names of tests say which they are of. G02 is in `tests/host/text/dialects/test_rules.py`, G03
in every transcript there, G07 and G14 in `tests/server/test_bad_input.py`, G17 and G18 in `tests/host/text/test_chat.py`, G20 in
`tests/server/test_responses.py`.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from octavo.config.serve import ServeConfig
from octavo.constrain.grammar import checked
from octavo.frontend.text.chat import CHATML
from tests.server.harness import client, events_of, run
from tests.server.speaker import Speaker

HERMES = "{{ messages }}<tool_call></tool_call>"
THINKS = HERMES + "<think></think>"
WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [
    {
        "type": "function",
        "function": {"name": "weather", "description": "of a city", "parameters": WEATHER, "strict": True},
    },
    {"type": "function", "function": {"name": "time"}},
]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris {x\\""}}\n</tool_call>'
TIME = '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>'
ARGUMENTS = '{"city": "Paris {x\\""}'


async def _post(service: Speaker, config: ServeConfig, **fields: Any) -> Any:
    body = {"messages": [{"role": "user", "content": "Hi"}], "tools": TOOLS, **fields}
    async with client(service, config) as http:
        return await http.post("/v1/chat/completions", json={name: value for name, value in body.items() if value})


def _ask(service: Speaker, config: ServeConfig, **fields: Any) -> Any:
    """Return the answer; the same request as a stream must add up to it."""
    answer = run(_post(service, config, **fields))
    assert answer.status_code == 200, answer.text
    body = answer.json()
    for choice in body["choices"]:
        for number, call in enumerate(choice["message"].get("tool_calls", ())):
            assert call.pop("id").startswith("call_"), number
    options = {"include_usage": True}
    events = events_of(run(_post(service, config, **fields, stream=True, stream_options=options)).text)
    assert events.pop() == "[DONE]"
    usage = json.loads(events.pop())["usage"]
    streamed = [_joined(number, events) for number in range(len(body["choices"]))]
    assert streamed == body["choices"]
    assert usage == body["usage"]
    return body


def _joined(number: int, events: list[str]) -> dict[str, Any]:
    """Return a choice as OpenAI's clients put it together."""
    message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None}
    calls: list[dict[str, Any]] = []
    end: dict[str, Any] = {}
    for event in events:
        (choice,) = json.loads(event)["choices"]
        if choice["index"] != number:
            continue
        delta = choice["delta"]
        assert not end, "a chunk came after the end"
        for name in ("content", "reasoning", "reasoning_content"):
            if delta.get(name):
                message[name] = (message.get(name) or "") + delta[name]
        for call in delta.get("tool_calls", ()):
            if call["index"] == len(calls):
                calls.append({"type": call["type"], "function": {"name": call["function"]["name"], "arguments": ""}})
                assert call["id"].startswith("call_")
            else:
                assert "id" not in call
            calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
        if choice["finish_reason"] is not None:
            end = {"finish_reason": choice["finish_reason"], "stop_reason": choice["stop_reason"]}
    if calls:
        message["tool_calls"] = calls
    elif message["content"] is None:
        message["content"] = ""
    return {"index": number, "message": message, "logprobs": None, **end}


def _calls(choice: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        (call["function"]["name"], call["function"]["arguments"]) for call in choice["message"].get("tool_calls", ())
    ]


@pytest.mark.parametrize("size", [1, 4, 1000])
def test_g01_g13_calls_streamed_and_whole(config: ServeConfig, size: int) -> None:
    service = Speaker(f"I look.\n{CALL}\n{TIME}", "Nothing.", template=HERMES, size=size)
    first, second = _ask(service, config, n=2)["choices"]
    assert _calls(first) == [("weather", ARGUMENTS), ("time", "{}")]
    assert (first["message"]["content"], first["finish_reason"]) == ("I look.\n", "tool_calls")
    assert (second["message"], second["finish_reason"]) == (
        {"role": "assistant", "content": "Nothing.", "refusal": None},
        "stop",
    )


def test_ids_are_unique_and_as_mistral_s_templates_want_them(config: ServeConfig) -> None:
    text = "[TOOL_CALLS]time[ARGS]{}[TOOL_CALLS]time[ARGS]{}"
    body = run(_post(Speaker(text, template="[TOOL_CALLS]"), config)).json()
    ids = [call["id"] for call in body["choices"][0]["message"]["tool_calls"]]
    assert len(set(ids)) == 2
    assert all(len(one) == 9 and one.isalnum() for one in ids)


@pytest.mark.parametrize("says", [CALL, "Just words."])
@pytest.mark.parametrize("reason", ["stop", "length"])
@pytest.mark.parametrize("choice", ["auto", "none"])
def test_g04_the_table_of_finish_reasons(config: ServeConfig, says: str, reason: str, choice: str) -> None:
    service = Speaker(says, template=HERMES)
    service.reason = reason
    answer = _ask(service, config, tool_choice=choice)["choices"][0]
    called = says == CALL and choice == "auto"
    assert bool(_calls(answer)) == called
    assert answer["finish_reason"] == ("tool_calls" if called and reason == "stop" else reason)
    assert answer["message"]["content"] == (None if called else says)


def test_g05_a_call_that_is_cut_off_is_no_whole_one(config: ServeConfig) -> None:
    service = Speaker(CALL[:60], template=HERMES)
    service.reason = "length"
    answer = _ask(service, config)["choices"][0]
    assert (_calls(answer), answer["finish_reason"]) == (
        [("weather", ARGUMENTS[: 60 - CALL.index(ARGUMENTS)])],
        "length",
    )
    begun = Speaker(CALL[:20], template=HERMES)
    begun.reason = "length"
    answer = _ask(begun, config)["choices"][0]
    assert (answer["message"]["content"], answer["finish_reason"]) == (CALL[:20], "length")


def test_g11_one_call_at_a_time(config: ServeConfig) -> None:
    answer = _ask(Speaker(CALL + TIME, template=HERMES), config, parallel_tool_calls=None)["choices"][0]
    assert len(_calls(answer)) == 2

    async def alone() -> Any:
        async with client(Speaker(CALL + TIME, template=HERMES), config) as http:
            body = {"messages": [{"role": "user", "content": "Hi"}], "tools": TOOLS, "parallel_tool_calls": False}
            return (await http.post("/v1/chat/completions", json=body)).json()

    choice = run(alone())["choices"][0]
    assert (_calls(choice), choice["finish_reason"]) == ([("weather", ARGUMENTS)], "tool_calls")


def _lark(service: Speaker) -> str:
    return service.requests[-1][1].structured_outputs.lark


def test_a_call_that_must_be_is_all_that_may_come(config: ServeConfig) -> None:
    service = Speaker(CALL, template=HERMES)
    named = {"type": "function", "function": {"name": "weather"}}
    answer = _ask(service, config, tool_choice=named)["choices"][0]
    assert (_calls(answer), answer["finish_reason"]) == ([("weather", ARGUMENTS)], "tool_calls")
    assert r'"<tool_call>\n" ("{\"name\": \"weather\", \"arguments\": " %json' in _lark(service)
    assert "time" not in _lark(service)
    assert "TEXT)" not in _lark(service).splitlines()[1]
    both = Speaker(CALL + TIME, template=HERMES)
    assert len(_calls(_ask(both, config, tool_choice="required")["choices"][0])) == 2
    assert r"\"time\"" in _lark(both)
    # As many calls as tools, if nobody asks for more: small models would go on for ever.
    assert "{0,1}" in _lark(both)
    _ask(both, config, tool_choice="required", parallel_tool_calls=True)
    assert "{0,1}" not in _lark(both)


@pytest.mark.parametrize(
    ("template", "prompt", "opening"),
    [
        (THINKS, "<|im_start|>assistant\n<think>\n", 'TEXT "</think>"'),
        (THINKS, "<|im_start|>assistant\n<think>\n\n</think>\n\n", 'start: ("<think>" until_1'),
        ("<|channel|><|message|>", "<|start|>assistant", '"<|channel|>commentary to=functions.weather'),
        ("[TOOL_CALLS]", "[/INST]", '"[TOOL_CALLS]" ("weather"  "[ARGS]"'),
        ("<|start_header_id|>ipython", "x", r'("{\"name\": \"weather\", \"parameters\": "'),
        ("<tool_call><function=", "x", r'"<tool_call>\n" ("<function=weather>\n"'),
    ],
)
def test_grammars_are_in_the_dialect(config: ServeConfig, template: str, prompt: str, opening: str) -> None:
    service = Speaker("Words.", template=template, prompt=prompt)
    run(_post(service, config, tool_choice="required"))
    assert opening in _lark(service)
    assert checked(_lark(service)) == _lark(service)
    run(_post(service, config))
    assert service.requests[-1][1].structured_outputs is None or checked(_lark(service))


def test_a_whole_grammar_of_ones_own_is_the_form_of_a_chats_answer(config: ServeConfig) -> None:
    service = Speaker("l", template=THINKS)
    run(_post(service, config, tools=None, structured_outputs={"lark": 'start: end\nend: "start"'}))
    assert 'answer: end\nend: "start"' in _lark(service)
    assert checked(_lark(service)) == _lark(service)


def test_a_schema_that_no_grammar_can_say(config: ServeConfig) -> None:
    service = Speaker(TIME, template=HERMES)
    strange = {"type": "object", "properties": {"a": {"type": "array", "contains": {"const": 1}}}, "required": ["a"]}
    tool = {"type": "function", "function": {"name": "f", "parameters": strange, "strict": True}}
    refused = run(_post(service, config, tools=[tool]))
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tools[0].function.parameters")
    assert "contains" in refused.json()["error"]["message"]
    del tool["function"]["strict"]
    assert run(_post(service, config, tools=[tool])).status_code == 200
    assert '"lenient": true' in _lark(service)


def test_thoughts_have_a_budget(config: ServeConfig) -> None:
    service = Speaker("Words.", template=THINKS, prompt="<think>")
    run(_post(service, config, tools=None, thinking_token_budget=7))
    assert "[max_tokens=7]" in _lark(service)
    assert service.requests[-1][1].thinking_token_budget is None
    formed = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"const": 1}}}
    run(_post(service, config, tools=None, response_format=formed))
    assert 'TEXT "</think>"' in _lark(service)
    assert "%json" in _lark(service)
    refused = run(_post(Speaker("Words.", template=HERMES), config, tools=None, thinking_token_budget=7))
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "thinking_token_budget")


def test_a_required_call_that_does_not_come_is_an_error(config: ServeConfig) -> None:
    service = Speaker("I would rather not.", template=HERMES)
    answer = run(_post(service, config, tool_choice="required"))
    assert (answer.status_code, answer.json()["error"]["type"]) == (422, "no_tool_call")
    assert answer.json()["error"]["param"] == "tool_choice"
    events = events_of(run(_post(service, config, tool_choice="required", stream=True)).text)
    assert (json.loads(events[-2])["error"]["type"], events[-1]) == ("no_tool_call", "[DONE]")


def test_what_the_template_is_told(config: ServeConfig) -> None:
    service = Speaker("Words.", template=THINKS)
    run(_post(service, config, reasoning_effort="low", documents=[{"text": "d"}]))
    kwargs = service.conversations[0][1]["template_kwargs"]
    nothing = {"type": "object", "properties": {}}
    assert kwargs["tools"][0] == TOOLS[0]
    assert kwargs["tools"][1] == {"type": "function", "function": {"name": "time", "parameters": nothing}}
    assert (kwargs["reasoning_effort"], kwargs["documents"], "enable_thinking" in kwargs) == (
        "low",
        [{"text": "d"}],
        False,
    )
    run(_post(service, config, reasoning_effort="none", tool_choice="none"))
    assert service.conversations[1][1]["template_kwargs"] == {
        "reasoning_effort": "none",
        "enable_thinking": False,
        "thinking": False,
    }


def test_g08_g15_results_of_tools_reach_the_template(config: ServeConfig) -> None:
    service = Speaker("18", template=HERMES)
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}
    turns = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "reasoning": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "18 C"},
    ]
    run(_post(service, config, messages=turns))
    found = service.conversations[0][0]
    assert found[1] == {**turns[1], "reasoning_content": "hm", "thinking": "hm"}
    assert found[2] == turns[2]


def test_templates_without_tools_get_them_as_text(config: ServeConfig) -> None:
    service = Speaker(CALL, template=CHATML)
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Köln"}'}}
    turns = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "I look.", "tool_calls": [call, call]},
        {"role": "tool", "tool_call_id": "c1", "content": "18 C"},
        {"role": "tool", "tool_call_id": "c1", "content": "19 C"},
        {"role": "user", "content": "So?"},
    ]
    assert _calls(_ask(service, config, messages=turns)["choices"][0]) == [("weather", ARGUMENTS)]
    messages, options = service.conversations[0]
    assert options["template_kwargs"] == {}
    system, _, asked, result = messages
    assert system["content"].startswith("Be brief.\n\nYou can call functions.")
    assert json.dumps({"name": "weather", "description": "of a city", "parameters": WEATHER}) in system["content"]
    written = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'
    assert asked == {"role": "assistant", "content": f"I look.\n{written}\n{written}"}
    response = "<tool_response>\n18 C\n</tool_response>\n<tool_response>\n19 C\n</tool_response>\nSo?"
    assert result == {"role": "user", "content": response}
    run(_post(service, config, tools=None))
    assert service.conversations[-1][0] == [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize("size", [1, 5, 1000])
@pytest.mark.parametrize("prompt", ["assistant\n", "assistant\n<think>\n"])
def test_g09_thoughts_are_no_part_of_the_answer(config: ServeConfig, size: int, prompt: str) -> None:
    begin = "" if prompt.endswith("<think>\n") else "<think>\n"
    service = Speaker(f"{begin}Hm.</think>\n\nYes.", template=THINKS, prompt=prompt, size=size)
    body = _ask(service, config, tools=None)
    message = body["choices"][0]["message"]
    assert (message["reasoning"], message["reasoning_content"], message["content"]) == ("Hm.", "Hm.", "Yes.")
    if size == 1:
        assert body["usage"]["completion_tokens_details"] == {"reasoning_tokens": len("Hm.</think>" + begin[7:])}


def test_thoughts_that_nobody_wants(config: ServeConfig) -> None:
    service = Speaker("<think>Hm.</think>Yes.", template=THINKS)

    async def ask() -> Any:
        async with client(service, config) as http:
            body = {"messages": [{"role": "user", "content": "Hi"}], "include_reasoning": False}
            return (await http.post("/v1/chat/completions", json=body)).json()

    body = run(ask())
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "Yes.", "refusal": None}
    assert body["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0


@pytest.mark.parametrize("prompt", ["assistant\n", "assistant\n<think>\n\n</think>\n\n"])
def test_g10_an_answer_without_thoughts_is_an_answer(config: ServeConfig, prompt: str) -> None:
    message = _ask(Speaker("Yes <think>.", template=THINKS, prompt=prompt), config)["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "Yes <think>.", "refusal": None}


def test_an_unfinished_thought_goes_on(config: ServeConfig) -> None:
    service = Speaker(" more.</think>Yes.", template=THINKS)
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "<think>Hm,"}]
    message = _ask(service, config, messages=turns, continue_final_message=True)["choices"][0]["message"]
    assert (message["reasoning"], message["content"]) == ("more.", "Yes.")
    assert service.conversations[0][1]["add_generation_prompt"] is False


def test_options_name_the_dialects(config: ServeConfig) -> None:
    named = dataclasses.replace(config, tool_call_parser="llama3_json", reasoning_parser="deepseek_r1")
    service = Speaker('Hm.</think>{"name": "time", "parameters": {}}', template=CHATML)
    choice = _ask(service, named)["choices"][0]
    assert (choice["message"]["reasoning"], _calls(choice)) == ("Hm.", [("time", "{}")])
    off = dataclasses.replace(config, tool_call_parser="none", reasoning_parser="none")
    service = Speaker("<think>Hm.</think>", template=THINKS)
    assert _ask(service, off, tools=None)["choices"][0]["message"]["content"] == "<think>Hm.</think>"
    refused = run(_post(service, off)).json()["error"]
    assert (refused["param"], refused["code"]) == ("tools", "unsupported_parameter")


@pytest.mark.parametrize("stream", [False, True])
def test_g19_every_protocol_tells_the_same(config: ServeConfig, stream: bool) -> None:
    says = f"<think>Hm.</think>I look.{CALL}{TIME}"
    user = [{"role": "user", "content": "Hi"}]
    named = [("weather", json.loads(ARGUMENTS)), ("time", {})]

    async def ask(path: str, **body: Any) -> Any:
        async with client(Speaker(says, template=THINKS), config) as http:
            answer = await http.post(path, json={"model": "tiny", "stream": stream, **body})
        assert answer.status_code == 200, answer.text
        return answer

    functions = [one["function"] for one in TOOLS]
    flat = [{"type": "function", "parameters": {}, **one} for one in functions]
    answer = run(ask("/v1/responses", input="Hi", tools=flat))
    response = json.loads(answer.text.split("data: ")[-1])["response"] if stream else answer.json()
    kinds = [item["type"] for item in response["output"]]
    assert kinds == ["reasoning", "message", "function_call", "function_call"]
    calls = [(item["name"], json.loads(item["arguments"])) for item in response["output"][2:]]
    assert (response["output"][0]["content"][0]["text"], response["output"][1]["content"][0]["text"]) == (
        "Hm.",
        "I look.",
    )
    assert calls == named
    assert CALL not in answer.text.replace("\\n", "\n")

    schemas = [{"name": one["name"], "input_schema": one.get("parameters", {"type": "object"})} for one in functions]
    answer = run(ask("/v1/messages", messages=user, max_tokens=99, tools=schemas))
    if not stream:
        blocks = answer.json()["content"]
        assert [block["type"] for block in blocks] == ["thinking", "text", "tool_use", "tool_use"]
        assert (blocks[0]["thinking"], blocks[1]["text"]) == ("Hm.", "I look.")
        assert [(block["name"], block["input"]) for block in blocks[2:]] == named
    assert "tool_use" in answer.text
    assert "<tool_call>" not in answer.text

    answer = run(ask("/api/chat", messages=user, tools=TOOLS))
    lines = [json.loads(line)["message"] for line in answer.text.splitlines()]
    assert "".join(line.get("thinking") or "" for line in lines) == "Hm."
    assert "".join(line["content"] for line in lines) == "I look."
    found = [call["function"] for line in lines for call in line.get("tool_calls") or ()]
    assert [(one["name"], one["arguments"]) for one in found] == named


@pytest.mark.parametrize(
    ("field", "value", "use"),
    [("functions", [{"name": "f"}], "tools"), ("function_call", {"name": "f"}, "tool_choice")],
)
def test_fields_of_old(config: ServeConfig, field: str, value: Any, use: str) -> None:
    error = run(_post(Speaker("a", template=HERMES), config, **{field: value})).json()["error"]
    assert (error["param"], error["message"]) == (field, f"{field} is not supported: use {use}")


@pytest.mark.parametrize(
    "tool", [{}, {"function": 5}, {"function": {}}, {"function": {"name": "f", "parameters": [1]}}]
)
def test_tools_that_are_none_in_a_protocol_without_types(config: ServeConfig, tool: Any) -> None:
    async def ask() -> Any:
        async with client(Speaker("a", template=HERMES), config) as http:
            body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "tools": [tool], "stream": False}
            return await http.post("/api/chat", json=body)

    answer = run(ask())
    assert answer.status_code == 400
    assert "tools[0].function" in answer.json()["error"]
