"""Dialects and tokens: markers that are special tokens are seen by the engine, and by nobody else."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import AddedToken

from octavo.frontend.text.detokenizer import start_detokenizer
from octavo.frontend.text.dialects.events import Event, ReasoningDelta, ToolCallBegin
from octavo.frontend.text.dialects.speech import Speech
from octavo.frontend.text.tokenizer import Tokenizer
from tests.frontend.bytes_model import EOS, make_core
from tests.host.text.dialects.transcripts import SCHEMAS, TRANSCRIPTS, dialect_of, merged, said

Row = tuple[str, str, str, list[Event]]


def tokenizer_of(texts: str) -> Tokenizer:
    """A tokenizer of bytes in which every marker in brackets is a special token."""
    core = make_core()
    markers = [text for text in texts.splitlines() if text[:1] in "<[" and text.endswith((">", "]")) and len(text) > 2]
    core.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in markers])
    return Tokenizer(core, {"bos_token": "<s>", "eos_token": "</s>"})


def events_of(speech: Speech, tokenizer: Tokenizer, ids: list[int], **options: Any) -> list[Event]:
    (reads,) = speech.parsers(SCHEMAS, [0], 1, **{"continued": None, "one_call": False, **options})
    assert reads is not None
    text = start_detokenizer(tokenizer, shown=speech.shown(tools=True))
    events = [event for index in ids for event in reads.push(text.push([index]))]
    return merged([*events, *reads.push(text.flush()), *reads.end()])


def without_ids(events: list[Event]) -> list[Event]:
    return [ToolCallBegin(e.index, "", e.name) if isinstance(e, ToolCallBegin) else e for e in events]


@pytest.mark.parametrize("row", TRANSCRIPTS, ids=[f"{row[0]}-{row[1]}-{i}" for i, row in enumerate(TRANSCRIPTS)])
def test_token_by_token(row: Row) -> None:
    calls, reasoning, text, expected = row
    tokenizer = tokenizer_of(dialect_of(calls, reasoning).texts)
    speech = Speech(tokenizer, None, calls=calls, reasoning=reasoning)
    ids = tokenizer.encode(text, add_special_tokens=False)
    found = events_of(speech, tokenizer, [*ids, EOS])
    if calls == "none":
        assert speech.takes_tools is False
    assert without_ids(found) == without_ids(expected)


def test_only_markers_are_shown() -> None:
    tokenizer = tokenizer_of("[THINK]\n[/THINK]\n[TOOL_CALLS]\n[ARGS]")
    speech = Speech(tokenizer, "[THINK][TOOL_CALLS]")
    assert sorted(speech.shown(tools=True).values()) == ["[/THINK]", "[ARGS]", "[THINK]", "[TOOL_CALLS]"]
    assert sorted(speech.shown(tools=False).values()) == ["[/THINK]", "[THINK]"]
    assert Speech(tokenizer, "{{ messages }}").shown(tools=False) == {}


def test_a_marker_that_is_a_token_counts_wherever_it_stands() -> None:
    tokenizer = tokenizer_of("[THINK]\n[/THINK]")
    speech = Speech(tokenizer, "[THINK]")
    ids = tokenizer.encode("a[THINK]b[/THINK]c[/THINK]d", add_special_tokens=False)
    assert events_of(speech, tokenizer, ids) == [said("a"), ReasoningDelta("b"), said("cd")]
    assert speech.thought_ids == {tokenizer.token_id("[THINK]"), tokenizer.token_id("[/THINK]")}


@pytest.mark.parametrize(
    ("template", "prompt", "thinking"),
    [
        ("<think>", "Is <think> a tag?\nassistant\n", False),
        ("<think>", "assistant\n<think>\n", True),
        ("<think>", "assistant\n<think>\n\n</think>\n\n", False),
        ("<|channel|><|message|>", "<|start|>assistant<|channel|>analysis<|message|>", True),
        ("<|channel|><|message|>", "<|start|>assistant", False),
        ("Here is my thought process", "a </think>", False),
    ],
)
def test_where_a_prompt_ends(template: str, prompt: str, thinking: bool) -> None:
    tokenizer = tokenizer_of("<|channel|>\n<|message|>")
    speech = Speech(tokenizer, template)
    assert speech.thinking(tokenizer.encode(prompt, add_special_tokens=False)) is thinking


def test_a_dialect_that_begins_within_thoughts() -> None:
    tokenizer = tokenizer_of("")
    speech = Speech(tokenizer, "<tool_call>", reasoning="deepseek_r1")
    assert speech.thinking(list(b"assistant\n")) is True
    assert speech.thinking(list(b"assistant\n</think>\n")) is False


@pytest.mark.parametrize(
    ("continued", "first"), [("Yes.", "s"), ("<think>a", "r"), ("<think>a</think>b", "s"), ("</think>", "s")]
)
def test_where_an_answer_goes_on(continued: str, first: str) -> None:
    tokenizer = tokenizer_of("")
    events = events_of(Speech(tokenizer, "<think>"), tokenizer, list(b"x"), continued=continued)
    assert events == [ReasoningDelta("x") if first == "r" else said("x")]
