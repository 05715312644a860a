"""The server's OpenAPI description, octavo/frontend/server/openapi.json, from the bodies that its routes decode.

What clients may send is exact; what they are answered is named, and OpenAI's and Anthropic's own descriptions say how it looks.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec

from octavo.base.version import VERSION
from octavo.frontend.server.app import ROUTES
from octavo.frontend.server.health import PAGES
from octavo.frontend.server.keys import ADMIN
from octavo.frontend.server.routes import ollama
from octavo.frontend.server.routes.anthropic_schema import CountBody, MessagesBody
from octavo.frontend.server.routes.generate import GenerateBody
from octavo.frontend.server.routes.openai_schema import ChatBody, CompletionBody
from octavo.frontend.server.routes.responses_schema import ResponsesBody
from octavo.frontend.server.routes.tokens import DetokenizeBody, TokenizeBody

FILE = Path(__file__).resolve().parents[1] / "octavo" / "frontend" / "server" / "openapi.json"
BODIES: dict[str, Any] = {
    "/v1/completions": CompletionBody,
    "/v1/chat/completions": ChatBody,
    "/v1/messages": MessagesBody,
    "/v1/messages/count_tokens": CountBody,
    "/v1/responses": ResponsesBody,
    "/api/chat": vars(ollama)["_ChatBody"],
    "/api/generate": vars(ollama)["_GenerateBody"],
    "/api/show": vars(ollama)["_ShowBody"],
    "/inference/v1/generate": GenerateBody,
    "/tokenize": TokenizeBody,
    "/detokenize": DetokenizeBody,
}
_ERRORS = {
    "400": "a field is wrong, or asks for what is not supported",
    "401": "no valid key",
    "404": "no such model or object",
    "413": "the body is too large",
    "422": "a call of a tool was required, and the model made none",
    "429": "too many requests wait",
    "503": "the engine is dead, or the server is shutting down",
}


def render() -> str:
    """Return the description as JSON."""
    refs, components = msgspec.json.schema_components(BODIES.values(), ref_template="#/components/schemas/{name}")
    names = dict(zip(BODIES, refs, strict=True))
    paths: dict[str, Any] = {}
    for methods, path, endpoint in ROUTES:
        if path in PAGES:
            continue
        shown = re.sub(r"\{(\w+)(:path)?\}", r"{\1}", path)
        for method in methods.split():
            paths.setdefault(shown, {})[method.lower()] = _operation(path, method, endpoint, names.get(path))
    described = {
        "openapi": "3.1.0",
        "info": {"title": "Octavo", "version": VERSION, "description": "An LLM server."},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer"},
                "admin": {"type": "http", "scheme": "bearer"},
            },
        },
    }
    text = json.dumps(described, indent=1, ensure_ascii=False) + "\n"
    return re.sub(r"octavo\.frontend\.server\.routes\.(\w+?)(_schema)?\.", r"\1.", text)


def _operation(path: str, method: str, endpoint: Any, body: dict[str, Any] | None) -> dict[str, Any]:
    errors = {status: {"description": text} for status, text in _ERRORS.items()}
    found: dict[str, Any] = {
        "operationId": f"{method.lower()}{re.sub(r'[^a-z0-9]+', '_', path)}".rstrip("_"),
        "summary": endpoint.__doc__.splitlines()[0].rstrip("."),
        "security": [{"admin": []}] if path in ADMIN else [{}, {"key": []}],
        "responses": {"200": {"description": "the answer"}, **errors},
    }
    parameters = re.findall(r"\{(\w+)", path)
    if parameters:
        schema = {"type": "string"}
        found["parameters"] = [{"name": name, "in": "path", "required": True, "schema": schema} for name in parameters]
    if body is not None:
        found["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    return found
