"""Chat messages to a prompt, by the model's own Jinja template: what a conversation may be, and who renders it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from octavo.base.errors import InvalidRequestError
from octavo.frontend.text.template_process import TemplateProcess
from octavo.frontend.text.templating import check_syntax

# For models that bring no template. ChatML is what most models without one were tuned on.
CHATML: Final = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Characters of a rendered chat: far beyond any context, and far below what hurts the server.
MAX_CHARACTERS: Final = 16 * 2**20
MAX_MESSAGES: Final = 16384
# Templates that walk through a content's parts, and do not ask whether it is a text.
_WALK: Final = re.compile(r"""\bin\s+\w+(?:\.content|\[['"]content['"]\])\s*[-+%|]""")

Message = Mapping[str, Any]


class ChatTemplate:
    """A template that is known to be one. special_tokens: "bos_token" and its like -> text, which templates may write.

    It is rendered in a process of its own, which cannot take all memory or loop without end; that starts with `start`, or
    with the first chat, and ends with this object.
    """

    def __init__(
        self,
        source: str | None,
        special_tokens: Mapping[str, str] | None = None,
        process: TemplateProcess | None = None,
    ) -> None:
        """Take `source` (None: ChatML); raises ConfigError for a syntax error."""
        self.source = CHATML if source is None else source
        check_syntax(self.source)
        self._wants_parts = _WALK.search(self.source) is not None and "is string" not in self.source
        self._special_tokens = dict(special_tokens or {})
        self._process = process or TemplateProcess()

    def start(self) -> None:
        """Start the process now, so that the first chat need not wait for it. Returns at once."""
        self._process.start()

    def stop(self) -> None:
        """End the process; idempotent. Another chat starts a new one."""
        self._process.stop()

    def instead(self, source: str) -> ChatTemplate:
        """Return another template, rendered where this one is; raises ConfigError for a syntax error."""
        return ChatTemplate(source, self._special_tokens, self._process)

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
        max_characters: int = MAX_CHARACTERS,
    ) -> str:
        """Return the prompt. `variables` are the template's own (tools, enable_thinking, documents …).

        continue_final_message: it ends with the text of the last message, which the answer goes on with.

        Encode it with add_special_tokens=False: templates write BOS themselves. Raises InvalidRequestError naming the
        message at fault, with the template's own message if it refuses the chat, or saying that the template takes too
        much time or memory.
        """
        checked = checked_messages(messages)
        parts = [{**one, "content": [{"type": "text", "text": one["content"]}]} for one in checked]
        known = {"messages": parts if self._wants_parts else checked, "add_generation_prompt": add_generation_prompt}
        given = dict(variables or {})
        for name in known:
            if name in given:
                raise InvalidRequestError(
                    f"{name} is not one of the template's own variables", field="chat_template_kwargs"
                )
        if continue_final_message and add_generation_prompt:
            raise InvalidRequestError(
                "continue_final_message does not go together with add_generation_prompt: the answer goes on with the last "
                "message or begins a new one",
                field="continue_final_message",
            )
        text = self._process.render(self.source, {**self._special_tokens, **given, **known}, max_characters)
        return _ended_in(text, checked[-1]["content"]) if continue_final_message else text


def _ended_in(rendered: str, last: str) -> str:
    """Return the prompt up to the end of the last message's text; templates may have trimmed it."""
    place = rendered.rfind(last.strip()) if last.strip() else -1
    if place < 0:
        raise InvalidRequestError(
            "continue_final_message needs a last message with text, which the template shows as it is",
            field="continue_final_message",
        )
    return rendered[:place] + last.lstrip()


def checked_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return the messages as templates want them: content a string, arguments of tool calls an object.

    Raises InvalidRequestError naming what is wrong, such as messages[2].content.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, (str, bytes)) or not messages:
        raise InvalidRequestError("messages must be a list of at least one message", field="messages")
    if len(messages) > MAX_MESSAGES:
        raise InvalidRequestError(
            f"messages takes at most {MAX_MESSAGES} entries, not {len(messages)}", field="messages"
        )
    return [_checked(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _checked(message: Any, field: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InvalidRequestError(f"{field} must be an object with role and content, not {_kind(message)}", field=field)
    checked: dict[str, Any] = dict(message)
    role = checked.get("role")
    if not isinstance(role, str) or not role:
        raise InvalidRequestError(f"{field}.role must be a string such as 'user', not {role!r}", field=f"{field}.role")
    checked["content"] = _text(checked.get("content"), role, f"{field}.content")
    if checked.get("tool_calls") is not None:
        checked["tool_calls"] = _tool_calls(checked["tool_calls"], f"{field}.tool_calls")
    return checked


def _text(content: Any, role: str, field: str) -> str:
    if content is None and role == "assistant":
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        raise InvalidRequestError(f"{field} must be a string or a list of parts, not {_kind(content)}", field=field)
    return "\n".join(_part(part, f"{field}[{index}]") for index, part in enumerate(content))


def _part(part: Any, field: str) -> str:
    if not isinstance(part, Mapping):
        raise InvalidRequestError(f"{field} must be an object with type and text, not {_kind(part)}", field=field)
    if part.get("type") != "text":
        raise InvalidRequestError(
            f"{field}.type must be 'text', not {part.get('type')!r}: this model reads text only", field=f"{field}.type"
        )
    if not isinstance(part.get("text"), str):
        raise InvalidRequestError(
            f"{field}.text must be a string, not {_kind(part.get('text'))}", field=f"{field}.text"
        )
    return part["text"]


def _tool_calls(calls: Any, field: str) -> list[dict[str, Any]]:
    """Parse the arguments of earlier tool calls: OpenAI sends them as JSON text, templates print or walk an object."""
    if not isinstance(calls, Sequence) or isinstance(calls, (str, bytes)):
        raise InvalidRequestError(f"{field} must be a list, not {_kind(calls)}", field=field)
    checked: list[dict[str, Any]] = []
    for index, call in enumerate(calls):
        place = f"{field}[{index}].function"
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise InvalidRequestError(f"{place} must be an object with a name", field=place)
        arguments = _arguments(function.get("arguments"), f"{place}.arguments")
        checked.append({**call, "function": {**function, "arguments": arguments}})
    return checked


def _arguments(arguments: Any, field: str) -> dict[str, Any]:
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments.strip() else None
        except (ValueError, RecursionError) as error:
            raise InvalidRequestError(f"{field} is not valid JSON: {error}", field=field) from error
    if arguments is None:
        return {}
    if not isinstance(arguments, Mapping):
        raise InvalidRequestError(f"{field} must be a JSON object, not {_kind(arguments)}", field=field)
    return dict(arguments)


def _kind(value: Any) -> str:
    return "null" if value is None else type(value).__name__
