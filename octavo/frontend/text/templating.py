"""The Jinja that chat templates are written in. Nothing here bounds what a template takes: see `template_process`.

Templates come with models from strangers: they run in Jinja's sandbox, which gives them no way to files or processes. The
names and filters are those that the ecosystem's templates count on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, cast

from jinja2 import Template, TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from octavo.base.errors import ConfigError, InvalidRequestError

# What a template raises that does not take a chat as it is.
_REFUSALS = (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError)


def make_environment() -> ImmutableSandboxedEnvironment:
    """Return the environment that templates are compiled in."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationTag]
    )
    environment.filters["tojson"] = _to_json
    names = cast("dict[str, Any]", environment.globals)
    names.update(raise_exception=_raise_exception, strftime_now=_strftime_now)
    return environment


def check_syntax(source: str) -> None:
    """Raise ConfigError if this is no template. Nothing of it is run, not even what compiling would work out beforehand."""
    environment = make_environment()
    try:
        parsed = environment.parse(source)
    except TemplateSyntaxError as error:
        raise _broken(f"has a syntax error in line {error.lineno}: {error.message}") from error
    except RecursionError as error:
        raise _broken("is nested too deeply") from error
    for kind, known in ((nodes.Filter, environment.filters), (nodes.Test, environment.tests)):
        for node in parsed.find_all(kind):
            if node.name not in known:
                raise _broken(f"has a syntax error in line {node.lineno}: there is no {node.name!r}")


def render(template: Template, variables: Mapping[str, Any], max_characters: int) -> str:
    """Return the prompt. Raises InvalidRequestError with the template's own message if it refuses the chat."""
    pieces: list[str] = []
    num_characters = 0
    try:
        for piece in template.generate(variables):
            num_characters += len(piece)
            if num_characters > max_characters:
                raise InvalidRequestError(f"the chat is longer than {max_characters} characters", field="messages")
            pieces.append(piece)
    except InvalidRequestError:
        raise
    except _REFUSALS as error:
        raise InvalidRequestError(f"the chat template refused the messages: {error}", field="messages") from error
    return "".join(pieces)


def _broken(what: str) -> ConfigError:
    return ConfigError(f"the chat template {what}", field="chat_template")


class _GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}` marks the assistant's part for training; here it is just its content."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes HTML, which has no place in a prompt."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
