"""A fake service whose model says what a test writes, some characters a token."""

from __future__ import annotations

from typing import Any

from octavo.frontend.text.chat import checked_messages
from octavo.protocol.output import CompletionOutput
from tests.server.fake_service import FakeService, FakeStream, FakeTokenizer


class Letters(FakeTokenizer):
    """Every character is a token; `special` ones are tokens of their own."""

    special: tuple[str, ...] = ()

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [ord(character) for character in text]

    def decode(self, ids: Any, *, skip_special_tokens: bool = True) -> str:
        return "".join(map(chr, ids))

    @property
    def markers(self) -> dict[str, int]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return {text: 900 + index for index, text in enumerate(self.special)}

    def special_within(self, texts: str) -> dict[int, str]:
        return {900 + index: text for index, text in enumerate(self.special) if text in texts}


class Speaker(FakeService):
    """prompt: what a chat is rendered to. says: of each choice. size: characters that come at a time."""

    def __init__(self, *says: str, template: str | None, prompt: str = "Hi", size: int = 3) -> None:
        super().__init__()
        self.words = self.tokenizer = Letters()
        self.template = template
        self.says = says
        self.size = size
        self.prompt = prompt
        self.reason = "stop"

    async def chat_prompt(self, messages: Any, **options: Any) -> list[int]:
        checked_messages(messages)
        self.conversations.append((list(messages), options))
        return self.words.encode(self.prompt)

    async def generate(self, prompt: Any, params: Any, **options: Any) -> Any:
        stream = await super().generate([5], params, **options)
        self.requests[-1] = (prompt, params, options)
        assert isinstance(stream, FakeStream)
        stream.prompt_token_ids = prompt
        stream._count = max(1, *(-(-len(text) // self.size) for text in self.says))
        stream._choice = self._say(stream)  # pyright: ignore[reportAttributeAccessIssue]
        return stream

    def _say(self, stream: FakeStream) -> Any:
        def choice(index: int, position: int, reason: Any) -> CompletionOutput:
            text = self.says[index % len(self.says)]
            last = reason is not None
            piece = text[position * self.size :] if last else text[position * self.size : (position + 1) * self.size]
            return CompletionOutput(
                index=index,
                text=piece,
                token_ids=[ord(character) for character in piece],
                finish_reason=self.reason if last else None,  # pyright: ignore[reportArgumentType]
            )

        return choice
