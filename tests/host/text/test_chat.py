"""Chats become prompts as templates say, and bad messages are named."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from octavo.base.errors import ConfigError, InvalidRequestError
from octavo.checkpoint.templates import chat_templates, choose_template
from octavo.frontend.text.chat import CHATML, ChatTemplate
from octavo.frontend.text.template_process import TemplateProcess
from octavo.frontend.text.tokenizer import Tokenizer

USER = {"role": "user", "content": "Hi"}
PROCESS = TemplateProcess(seconds=1)


def render(messages, template, special_tokens=None, *, add_generation_prompt=True, **variables):
    compiled = ChatTemplate(template, special_tokens, PROCESS)
    return compiled.render(messages, add_generation_prompt=add_generation_prompt, variables=variables)


def test_smollm2(demo_gguf: Path, smollm: Tokenizer):
    template = ChatTemplate(chat_templates(demo_gguf)["default"], smollm.special_tokens)
    expected = (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert template.render([USER]) == expected
    assert template.render([USER], add_generation_prompt=False) == expected.removesuffix("<|im_start|>assistant\n")
    ids = smollm.encode(expected, add_special_tokens=False)
    assert ids[:2] == [1, 9690]
    assert ids.count(1) == 3


def test_a_rendered_chat_has_one_bos():
    """The template writes it; encoding adds none (tests of the tokenizer show the flag)."""
    assert render([USER], "{{ bos_token }}{{ messages[0].content }}", {"bos_token": "<s>"}) == "<s>Hi"


def test_without_a_template_chatml_is_written():
    system = {"role": "system", "content": "Be kind."}
    assert (
        render([system, USER], None)
        == "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert ChatTemplate(None).source == CHATML


def test_blocks_leave_no_blank_lines():
    source = (
        "{% for m in messages %}\n    {% if m.role == 'user' %}\n[{{ m.content }}]\n    {% endif %}\n{% endfor %}\nend"
    )
    assert render([USER, USER], source) == "[Hi]\n[Hi]\nend"


def test_loop_controls_and_generation_tags():
    body = "{% if loop.index == 2 %}{% break %}{% endif %}{% generation %}{{ m.content }}{% endgeneration %}"
    source = "{% for m in messages %}" + body + "{% endfor %}"
    assert render([USER, USER], source) == "Hi"


def test_json_is_not_escaped():
    tools = [{"name": "f", "description": "a < b & 'é'"}]
    assert render([USER], "{{ tools | tojson }}", tools=tools) == '[{"name": "f", "description": "a < b & \'é\'"}]'
    assert render([USER], "{{ tools | tojson(indent=1) }}", tools=[1]) == "[\n 1\n]"


def test_the_date():
    assert render([USER], "{{ strftime_now('%Y') }}") == str(datetime.now().year)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].content + 1 }}", "can only concatenate str"),
        ("{{ nothing.inside }}", "'nothing' is undefined"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ messages.append(1) }}", "'append' of 'list' object is unsafe"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ {[]: 1} }}", "unhashable"),
    ],
)
def test_a_template_that_refuses_gives_its_own_message(source: str, message: str):
    with pytest.raises(InvalidRequestError) as error:
        render([USER], source)
    assert message in error.value.message
    assert error.value.field == "messages"


@pytest.mark.parametrize("source", ["a\n{% if %}", "a\n{{ messages | nonsense }}", "a\n{{ 1 is nonsense }}"])
def test_a_broken_template_is_refused_before_any_request(source: str):
    with pytest.raises(ConfigError, match="syntax error in line 2"):
        ChatTemplate(source)


def test_a_template_nested_beyond_reason_is_refused():
    with pytest.raises(ConfigError, match="nested too deeply"):
        ChatTemplate("{{ " + "(" * 20_000 + ")" * 20_000 + " }}")


BOMBS = {
    "a long text": "{{ 'a' * 3000000000 }}",
    "one long text from the chat": "{{ messages[0].content.ljust(3000000000) | length }}",
    "doubling": "{% set ns = namespace(x='ab') %}{% for _ in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "padding": "{{ 'a' | center(3000000000) }}",
    "formatting": "{{ '%3000000000d' % 1 }}",
    "loops in loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "macros": "{% macro m(n) %}{{ m(n - 1) ~ m(n - 1) if n }}{% endmacro %}{{ m(99) }}",
    "a power": "{{ 10 ** (10 ** 9) }}",
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_template_that_takes_too_much_fails_alone(bomb: str):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InvalidRequestError, match="the chat template is at fault") as error:
        render([USER], BOMBS[bomb])
    assert error.value.field == "chat_template"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + 2**16
    assert render([USER], "{{ messages[0].content }}") == "Hi"


def test_the_process_of_templates_ends_and_comes_back():
    template = ChatTemplate("{{ messages[0].content }}")
    template.start()
    child = template._process._child
    assert template.render([USER]) == "Hi"
    assert template._process._child is child
    assert child is not None
    child.kill()
    child.wait()
    assert template.render([USER]) == "Hi", "what ended it was none of this chat's business"
    child = template._process._child
    assert child is not None
    del template
    assert child.returncode == -signal.SIGKILL


def test_chats_of_several_threads_are_not_mixed_up():
    template = ChatTemplate("{{ messages[0].content }}")
    with ThreadPoolExecutor(4) as pool:
        contents = [f"{i} " * (i + 1) for i in range(200)]
        assert list(pool.map(lambda text: template.render([{**USER, "content": text}]), contents)) == contents


@pytest.mark.parametrize("content", ["a \ud83d b", "\udfff"])
def test_half_a_character_is_refused(content: str):
    with pytest.raises(InvalidRequestError, match="surrogate"):
        render([{**USER, "content": content}], None)


def test_variables_that_no_json_could_hold_are_refused():
    with pytest.raises(InvalidRequestError, match="what JSON can say"):
        render([USER], "{{ x }}", x=object())


def test_output_is_bounded():
    template = ChatTemplate("{% for i in range(1000) %}{{ messages[0].content }}{% endfor %}")
    assert len(template.render([USER], max_characters=2000)) == 2000
    with pytest.raises(InvalidRequestError, match="longer than 1999"):
        template.render([USER], max_characters=1999)


def test_template_variables_cannot_replace_the_chat():
    with pytest.raises(InvalidRequestError) as error:
        ChatTemplate(None).render([USER], variables={"messages": []})
    assert error.value.field == "chat_template_kwargs"


def text_part(text: Any) -> dict[str, Any]:
    return {"type": "text", "text": text}


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (USER, "Hi"),
        ({"role": "user", "content": ""}, ""),
        ({"role": "user", "content": [text_part("a"), text_part("b")]}, "a\nb"),
        ({"role": "user", "content": []}, ""),
        ({"role": "assistant", "content": None, "tool_calls": []}, ""),
        ({"role": "assistant"}, ""),
        ({"role": "tool", "content": "42", "tool_call_id": "x"}, "42"),
    ],
)
def test_content(message: dict[str, Any], expected: str):
    assert render([message], "{{ messages[0].content }}") == expected


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ([], "messages"),
        ("hello", "messages"),
        (None, "messages"),
        ({"role": "user", "content": "x"}, "messages"),
        (["hello"], "messages[0]"),
        ([USER, None], "messages[1]"),
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": 3, "content": "x"}], "messages[0].role"),
        ([{"role": "", "content": "x"}], "messages[0].role"),
        ([USER, {"role": "user"}], "messages[1].content"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "user", "content": 3}], "messages[0].content"),
        ([{"role": "user", "content": {"type": "text", "text": "x"}}], "messages[0].content"),
        ([{"role": "user", "content": [text_part("x"), "y"]}], "messages[0].content[1]"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [text_part(3)]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": [{"text": "x"}]}], "messages[0].content[0].type"),
        ([{"role": "assistant", "tool_calls": "f()"}], "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": [{"id": "1"}]}], "messages[0].tool_calls[0].function"),
    ],
)
def test_bad_messages_are_named(messages: Any, field: str):
    with pytest.raises(InvalidRequestError) as error:
        render(messages, None)
    assert error.value.field == field
    assert error.value.message.startswith(field)


def call(arguments: Any) -> list[dict[str, Any]]:
    return [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": arguments}}],
        }
    ]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [('{"a": {"b": 1}}', "a=dict"), ({"a": 2}, "a=int"), ("null", ""), ("", ""), (None, ""), ("{}", "")],
)
def test_arguments_of_earlier_calls_are_objects(arguments: Any, expected: str):
    kind = "{% if v is mapping %}dict{% else %}int{% endif %}"
    source = "{% for k, v in messages[0].tool_calls[0].function.arguments.items() %}{{ k }}=" + kind + "{% endfor %}"
    given = call(arguments)
    assert render(given, source) == expected
    assert given[0]["tool_calls"][0]["function"]["arguments"] == arguments, "the caller's messages stay as they are"


@pytest.mark.parametrize("arguments", ['{"v": ', "[]", '"x"', "3", 3, "[" * 100_000])
def test_other_arguments_are_refused(arguments: Any):
    with pytest.raises(InvalidRequestError) as error:
        render(call(arguments), None)
    assert error.value.field == "messages[0].tool_calls[0].function.arguments"


def test_the_room_needs_no_torch(demo_gguf: Path):
    program = (
        "import sys; sys.modules['torch'] = sys.modules['transformers'] = sys.modules['gguf'] = None\n"
        "from octavo.frontend.text import chat, detokenizer, stops\n"
        "from octavo.frontend.text.tokenizer import load_tokenizer\n"
        f"tokenizer = load_tokenizer({str(demo_gguf)!r})\n"
        "prompt = chat.ChatTemplate(None).render([{'role': 'user', 'content': 'Hi'}])\n"
        "assert detokenizer.start_detokenizer(tokenizer).push(tokenizer.encode(prompt)) == 'user\\nHi\\nassistant\\n'\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_g17_templates_that_walk_through_parts():
    walks = (
        "{% for m in messages %}{% for part in m.content %}[{{ part.type }}:{{ part.text }}]{% endfor %}{% endfor %}"
    )
    parts = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    assert render([USER, parts], walks) == "[text:Hi][text:a\nb]"
    either = (
        "{% for m in messages %}{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for p in m['content'] %}"
        + ("x{% endfor %}{% endif %}{% endfor %}")
    )
    assert render([USER, parts], either) == "Hia\nb"


@pytest.mark.parametrize(("text", "end"), [("It is", ""), (" It is \n", " \n")])
def test_an_answer_that_goes_on(text: str, end: str):
    template = ChatTemplate("{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</>{% endfor %}", None, PROCESS)
    last = {"role": "assistant", "content": text}
    shown = template.render([USER, last], add_generation_prompt=False, continue_final_message=True)
    assert shown == f"<user>Hi</><assistant>It is{end}"
    with pytest.raises(InvalidRequestError, match="add_generation_prompt") as error:
        template.render([USER, last], continue_final_message=True)
    assert error.value.field == "continue_final_message"
    with pytest.raises(InvalidRequestError, match="a last message with text"):
        template.render([USER, {**last, "content": ""}], add_generation_prompt=False, continue_final_message=True)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("chatml", "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nA<|im_end|>\n<|im_start|>assistant\nB<|im_end|>\n"
         "<|im_start|>user\nC<|im_end|>\n<|im_start|>assistant\n"),
        ("llama2", "<s>[INST] <<SYS>>\nS\n<</SYS>>\n\nA [/INST] B </s><s>[INST] C [/INST]"),
        ("llama3", "<s><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n"
         "A<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nB<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n"
         "C<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"),
        ("mistral", "<s>[INST] A[/INST] B</s>[INST] S\n\nC[/INST]"),
        ("gemma", "<s><start_of_turn>user\nS\n\nA<end_of_turn>\n<start_of_turn>model\nB<end_of_turn>\n<start_of_turn>user\n"
         "C<end_of_turn>\n<start_of_turn>model\n"),
        ("phi3", "<|system|>\nS<|end|>\n<|user|>\nA<|end|>\n<|assistant|>\nB<|end|>\n<|user|>\nC<|end|>\n<|assistant|>\n"),
        ("zephyr", "<|system|>\nS</s>\n<|user|>\nA</s>\n<|assistant|>\nB</s>\n<|user|>\nC</s>\n<|assistant|>\n"),
        ("alpaca", "S\n\n### Instruction:\nA\n\n### Response:\nB</s>\n\n### Instruction:\nC\n\n### Response:\n"),
        ("vicuna", "S\n\nUSER: A\nASSISTANT: B</s>\nUSER: C\nASSISTANT:"),
    ],
)  # fmt: skip
def test_our_own_templates(name: str, expected: str):
    source = choose_template(name, None)
    turns = [("system", "S"), ("user", "A"), ("assistant", "B"), ("user", "C")]
    messages = [{"role": role, "content": text} for role, text in turns]
    assert render(messages, source, {"bos_token": "<s>", "eos_token": "</s>"}) == expected
    assert name != "chatml" or source == CHATML
    with pytest.raises(ConfigError, match=r"nor one of ours \(alpaca, chatml"):
        choose_template("no_such_name", None)
