"""How the served model speaks: its dialect, the tokens of its tokenizer, and what the end of a prompt says."""

from __future__ import annotations

import dataclasses
import secrets
import string
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from octavo.frontend.text.dialects.families import Dialect, find_dialect
from octavo.frontend.text.dialects.family import Schemas
from octavo.frontend.text.dialects.grammar import TurnForm, TurnGrammar
from octavo.frontend.text.dialects.parser import TurnParser
from octavo.frontend.text.tokenizer import Tokenizer

_LETTERS = string.ascii_letters + string.digits
_THINKING = "<|channel|>analysis<|message|>"
# Tokens at the end of a prompt among which its last marker stands.
_TAIL = 24


class Speech:
    """One model's. calls, reasoning: names of dialects, "auto" or "none"; raises ConfigError for another name.

    written_out: the template knows of no calls, so tools, calls and their results are written into the messages' text, and
    calls come as Hermes' models write them. takes_tools: whether there may be any.
    """

    def __init__(
        self, tokenizer: Tokenizer | None, template: str | None, *, calls: str = "auto", reasoning: str = "auto"
    ) -> None:
        found = find_dialect(calls, reasoning, template)
        self.takes_tools = calls != "none"
        self.written_out = self.takes_tools and found.calls is None and found.harmony is None
        if self.written_out:
            found = replace(found, calls=find_dialect("hermes", "none", None).calls)
        self._tokenizer = tokenizer
        self._dialects = {True: found, False: replace(found, calls=None)}
        self._shown = {
            tools: {} if tokenizer is None or dialect == Dialect() else tokenizer.special_within(dialect.texts)
            for tools, dialect in self._dialects.items()
        }
        side = found.reasoning
        markers = () if side is None or tokenizer is None else (*side.begin, *side.end)
        ids = [None if tokenizer is None else tokenizer.token_id(marker) for marker in markers]
        self.thinks = side is not None or found.harmony is not None
        self.thought_ids = frozenset(index for index in ids if index is not None)

    def shown(self, *, tools: bool) -> Mapping[int, str]:
        """Return the special tokens that must be seen, by their ids."""
        return self._shown[tools]

    def parsers(
        self, schemas: Schemas, prompt: Sequence[int], num_choices: int, *, continued: str | None, one_call: bool
    ) -> list[TurnParser | None]:
        """Return what reads the choices, None if there is nothing to be read in them. continued: what they go on with."""
        dialect, shown = self._dialects[bool(schemas)], self._shown[bool(schemas)]
        if dialect == Dialect():
            return [None] * num_choices
        texts = frozenset(dialect.texts.splitlines())
        tokens = [text for text in shown.values() if text in texts]
        thinking = self.thinking(prompt) if continued is None else self._within(continued)
        return [
            TurnParser(dialect, schemas, self._call_id, thinking=thinking, tokens=tokens, one_call=one_call)
            for _ in range(num_choices)
        ]

    def thinking(self, prompt: Sequence[int]) -> bool:
        """Return whether an answer begins within thoughts: by a marker at the prompt's end, or else by the dialect."""
        assert self._tokenizer is not None, "a chat was rendered"
        text = self._tokenizer.decode(prompt[-_TAIL:], skip_special_tokens=False).rstrip()
        side = self._dialects[False].reasoning
        if text.endswith((_THINKING,) if side is None else side.begin):
            return True
        return side is not None and side.inside and not text.endswith(side.end)

    def grammar(self, turn: TurnForm, prompt: Sequence[int], continued: str | None) -> str | None:
        """Return the grammar of an answer, None for any. continued: what it goes on with."""
        thinking = self.thinking(prompt) if continued is None else bool(self._within(continued))
        assert self._tokenizer is not None, "a chat was rendered"
        dialect = self._dialects[bool(turn.tools)]
        return TurnGrammar(dialect, self._tokenizer.markers).write(dataclasses.replace(turn, thinking=thinking))

    def _within(self, text: str) -> bool | None:
        """Return whether an unfinished answer is within thoughts, by its last marker."""
        side = self._dialects[False].reasoning
        if side is None or not any(marker in text for marker in (*side.begin, *side.end)):
            return None
        return max(map(text.rfind, side.begin)) > max(map(text.rfind, side.end))

    def _call_id(self, index: int, own: str) -> str:
        calls = self._dialects[True].calls
        style = "call" if calls is None else calls.ids
        if style != "call" and own:
            return own
        letters = "".join(secrets.choice(_LETTERS) for _ in range(9 if style == "nine" else 24))
        return letters if style == "nine" else f"call_{letters}"
