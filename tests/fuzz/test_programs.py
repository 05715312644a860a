"""What strangers write and we compile or run: schemas, regular expressions, grammars, chat templates. Refused or done, in bounded
time, and a template never reaches anything but its text.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from octavo.base.errors import ConfigError, InvalidRequestError
from octavo.constrain.grammar import checked, form_of, own_grammar, whole
from octavo.frontend.text.chat import ChatTemplate
from octavo.frontend.text.template_process import TemplateProcess
from octavo.protocol.structured import StructuredOutputsParams
from tests.fuzz.mutation import changed_bytes, changed_json, fuzz

# Compiling ends by itself in about a second at worst, a template in two of the processor; the machine may be busy.
SECONDS = 10.0
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 20, "pattern": "^[a-z]+$"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150, "multipleOf": 2},
        "tags": {"type": "array", "items": {"enum": ["a", 1, None]}, "minItems": 1, "maxItems": 5},
        "next": {"$ref": "#/$defs/node"},
        "one": {"anyOf": [{"const": 3}, {"type": "null"}]},
    },
    "required": ["name"],
    "additionalProperties": {"type": "number"},
    "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}},
}
TAG: dict[str, Any] = {
    "structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}, {"begin": "<g>", "schema": {}, "end": "</g>"}],
    "triggers": ["<"],
}
LARK = 'start: item ("," item)*\nitem: NAME "=" /[0-9]{1,3}/\nNAME: /[a-z]+/\n%ignore / /\n'
REGEX = r"(a|b{2,5})+[^\d\s]?(?:x.y)*\.(com|org)$"


def compiles(fields: dict[str, Any]) -> bool:
    """Return whether a form is taken; it is refused by an error that names the field, or it is a failure."""
    began = time.monotonic()
    try:
        form = StructuredOutputsParams(**fields)
        checked(own_grammar(form.lark) if form.lark else whole(form_of(form)))
    except InvalidRequestError as error:
        return not error.message
    finally:
        assert time.monotonic() - began < SECONDS, fields
    return True


@pytest.mark.parametrize("kind", ["json", "structural_tag"])
def test_schemas(kind: str) -> None:
    original = {"json": SCHEMA, "structural_tag": TAG}[kind]
    taken = [0, 0]

    @fuzz(80)
    @given(changed_json(original), st.booleans())
    def check(changed: Any, as_text: bool) -> None:
        taken[compiles({kind: json.dumps(changed) if as_text else changed})] += 1

    assert compiles({kind: original})
    check()
    assert min(taken) > 5


@pytest.mark.parametrize("kind", ["regex", "grammar", "lark", "json"])
def test_texts(kind: str) -> None:
    original = {"regex": REGEX, "json": json.dumps(SCHEMA)}.get(kind, LARK)
    taken = [0, 0]

    @fuzz(80)
    @given(changed_bytes(original.encode(), most=1))
    def check(changed: bytes) -> None:
        taken[compiles({kind: changed.decode(errors="replace")})] += 1

    assert compiles({kind: original})
    check()
    assert min(taken) > 2


@pytest.mark.parametrize(
    "regex",
    [
        "(a{1,1000}){1,1000}",
        "(" * 5000 + "a" + ")" * 5000,
        "(a*)*" * 200 + "b",
        "[" * 3000,
        "a{999999999}",
        "(?=a)b",
        "\\1",
    ],
)
def test_a_regular_expression_that_would_take_all_is_answered_soon(regex: str) -> None:
    compiles({"regex": regex})


def test_a_schema_whose_required_is_no_list_is_refused() -> None:
    assert not compiles({"json": {"type": "object", "properties": {"a": {"type": "string"}}, "required": True}})


def chained(link: Callable[[str], Any], length: int = 2000) -> dict[str, Any]:
    """Return a schema of definitions of which each names the next."""
    links = {f"a{number}": link(f"#/$defs/a{number + 1}") for number in range(length)}
    return {"$ref": "#/$defs/a0", "$defs": {**links, f"a{length}": {"type": "null"}}}


def nested(reference: str) -> Any:
    """Return a reference within twenty objects."""
    found: Any = {"$ref": reference}
    for _ in range(20):
        found = {"type": "object", "properties": {"x": found}}
    return found


LEAST = -(2**63)
RULES = "".join(f"r{number}: r{number + 1}\n" for number in range(5000))
# Each of these ended the process in llguidance, by a signal or by an exception of no class of Python's.
FATAL: dict[str, dict[str, Any]] = {
    "the least whole number": {"json": {"const": LEAST}},
    "and those that are rounded to it": {"json": {"enum": [[LEAST + 512]]}},
    "in a grammar": {"grammar": f'start: %json {{"const": {LEAST}}}\n'},
    "definitions in a chain": {"json": chained(lambda reference: {"$ref": reference})},
    "of objects": {"json": chained(lambda reference: {"properties": {"x": {"$ref": reference}}})},
    "few, but deep": {"json": chained(nested, 150)},
    "in a grammar of definitions": {"grammar": "start: %json " + json.dumps(chained(nested, 150))},
    "in a whole grammar": {"lark": "start: %json " + json.dumps(chained(nested, 150))},
    "written otherwise": {
        "lark": "start: %json " + json.dumps(chained(nested, 150)).replace("$ref", "\\u0024re\\u0066")
    },
    "in a structural tag": {
        "structural_tag": {"structures": [{"begin": "<", "schema": chained(nested, 150), "end": ""}], "triggers": ["<"]}
    },
    "rules in a chain": {"grammar": RULES + 'r5000: "a"\nstart: r0\n'},
    "terminals in a chain": {"lark": RULES.replace("r", "R") + 'R5000: "a"\nstart: R0\n'},
    "a long key that is cut in a character": {"json": {"minimum": {"\U000bc5de" * 40: 1}, "type": "integer"}},
}


@pytest.mark.parametrize("name", FATAL)
def test_what_ended_the_process_is_refused(name: str) -> None:
    assert not compiles(FATAL[name])


def test_large_schemas_that_people_write_are_taken() -> None:
    tree = {"type": "object", "properties": {f"p{n}": {"$ref": f"#/$defs/d{n}"} for n in range(100)}}
    defs = {
        f"d{n}": {"type": "object", "properties": {"next": {"$ref": f"#/$defs/d{(n * 7) % 100}"}}} for n in range(100)
    }
    assert compiles({"json": {**tree, "$defs": defs}})
    assert compiles({"grammar": "".join(f'r{n}: "{n}"\n' for n in range(900)) + "start: r0 | r899\n"})
    assert compiles({"json": {"const": LEAST + 2**20}})


CHAT = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "there"}]
TEMPLATE = (
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% if m.role == 'user' and loop.index0 > -1 %}<u>{{ m.content | trim }}"
    "{% else %}{{ '<' + m['role'] + '>' + m.content }}{% endif %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n * 2 }}"
    "{% if add_generation_prompt %}<a>{% endif %}{{ tools | tojson if tools }}"
)
_WORDS = (
    "{{ }} {% %} messages m range(10**9) loop __class__ .__mro__ | tojson list for endfor in if endif endmacro f() namespace() "
    "cycler lipsum [0] self attr '__init__' ('x') include set = 1 ** % ~"
)
_PHRASES = ["'a' * 10**9", "macro f()", "raise_exception('no')", "strftime_now('%Y')", "import 'os'"]
_PIECES = st.sampled_from([*_WORDS.split(), *_PHRASES])


@pytest.fixture(scope="module")
def process() -> Iterator[TemplateProcess]:
    running = TemplateProcess(seconds=1)
    yield running
    running.stop()


def renders(process: TemplateProcess, source: str) -> bool:
    """Return whether a template is taken and gives a text."""
    began = time.monotonic()
    try:
        text = ChatTemplate(source, {}, process).render(CHAT)
    except (ConfigError, InvalidRequestError):
        return False
    finally:
        assert time.monotonic() - began < SECONDS, source
    assert "<module" not in text
    assert "<built-in" not in text
    return True


def templates(changed: Callable[[Any], Any], process: TemplateProcess) -> None:
    """Try templates, and a good one after them."""
    taken = [0, 0]

    def check(source: str) -> None:
        taken[renders(process, source)] += 1

    changed(check)()
    assert min(taken) > 0
    assert renders(process, TEMPLATE)


def test_damaged_templates(process: TemplateProcess) -> None:
    strategy = changed_bytes(TEMPLATE.encode()).map(lambda data: data.decode(errors="replace"))
    templates(lambda check: fuzz(60)(given(strategy)(check)), process)


def test_templates_of_pieces(process: TemplateProcess) -> None:
    pieces = st.lists(_PIECES, max_size=12).map(" ".join)

    def tried(check: Any) -> Any:
        for source in ("{% for a in range(10**9) %}{% endfor %}", "{{ 'a' * 10**9 }}"):
            check = example(source)(check)
        return fuzz(25)(
            given(st.one_of(pieces, pieces.map(lambda text: "{{ " + text + " }}"), st.just("{{ 1 }}")))(check)
        )

    templates(tried, process)
