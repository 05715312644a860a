"""Tools for models whose template knows none: tools, calls and results become text of the messages, in Hermes' words."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from octavo.frontend.text.chat import checked_messages

_TOOLS = """You can call functions. They are, one JSON object a line:
<tools>
{tools}
</tools>
To call one, write nothing but a JSON object with its name and arguments between tags, once for each call:
<tool_call>
{{"name": "NAME", "arguments": {{"ARGUMENT": "VALUE"}}}}
</tool_call>
The results come between <tool_response> and </tool_response>. Without need for a function, just answer."""
_END = "</tool_response>"


def written_out(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the conversation without tools, calls and results, which stand in its text; raises InvalidRequestError."""
    found: list[dict[str, Any]] = []
    for message in checked_messages(messages):
        role, content, calls = message["role"], message["content"], message.pop("tool_calls", None) or ()
        if role == "tool":
            message, role, content = {"role": "user"}, "user", f"<tool_response>\n{content}\n{_END}"
        if role == "user" and found and found[-1]["role"] == "user" and found[-1]["content"].endswith(_END):
            found[-1]["content"] += "\n" + content  # Templates want turns that alternate.
            continue
        lines = [f"<tool_call>\n{_json(call['function'], 'name', 'arguments')}\n</tool_call>" for call in calls]
        found.append({**message, "content": "\n".join(filter(None, (content, *lines)))})
    if tools:
        listed = "\n".join(_json(tool["function"], "name", "description", "parameters") for tool in tools)
        system = _TOOLS.format(tools=listed)
        if found[0]["role"] in ("system", "developer"):
            found[0]["content"] += "\n\n" + system
        else:
            found.insert(0, {"role": "system", "content": system})
    return found


def _json(record: Mapping[str, Any], *keys: str) -> str:
    return json.dumps({key: record[key] for key in keys if key in record}, ensure_ascii=False)
