"""The documentation names what exists."""

from __future__ import annotations

import ast
import contextlib
import io
import re
import textwrap
from pathlib import PurePosixPath

import octavo
from octavo.base.env import known_variables
from octavo.cli.bench import KINDS
from octavo.cli.main import COMMANDS, main
from octavo.config.engine import ALIASES
from tests.arch.sources import ROOT, texts

DOCS = {path: text for path, text in texts().items() if path.endswith(".md")}
# Absolute paths of somebody's machine, and the hosts that packages and weights come from: users bring their own.
PLACES = re.compile(r"(?<![\w.~}/])/(home|root|work|opt|mnt|Users|data)/\w")
HOSTS = re.compile(r"pypi\.(org|python)|pythonhosted\.(org)|download\.pytorch|(huggingface|hf)\.(co)\b|conda\.(io)")


def _code(text: str) -> str:
    """The code of a page: fenced blocks and inline spans."""
    fenced = re.findall(r"^```.*?$(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return "\n".join([*fenced, *re.findall(r"`([^`\n]+)`", text)])


def test_make_targets_exist() -> None:
    makefile = texts()["Makefile"]
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    assert {"demo", "chat", "test", "test-all", "check", "bench"} <= targets
    named = {(path, name) for path, text in DOCS.items() for name in re.findall(r"\bmake ([a-z-]+)", _code(text))}
    assert {name for path, name in named if path == "README.md"} >= {"demo", "test"}
    assert sorted(pair for pair in named if pair[1] not in targets) == []
    assert [script for script in re.findall(r"\b\w+/\S+\.py", makefile) if not (ROOT / script).exists()] == []


def _flags(*command: str) -> set[str]:
    """The flags in a command's help."""
    with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.suppress(SystemExit):
        main([*command, "--help"])
    return set(re.findall(r"(?<![\w-])(--?[a-z][a-z0-9-]*)", shown.getvalue()))


def test_flags_exist() -> None:
    commands = [(name,) for name in COMMANDS] + [("bench", kind) for kind in KINDS]
    known = set.union({"--help", "--version"}, *(_flags(*command) for command in commands))
    known |= {"--" + alias.replace("_", "-") for alias in ALIASES}
    # Pages that speak of other programs' flags.
    pages = {path: text for path, text in DOCS.items() if path not in ("docs/vllm-flags.md", "docs/log.md")}
    named: set[tuple[str, str]] = set()
    for path, text in pages.items():
        spans = [span for span in re.findall(r"`([^`\n]+)`", text) if span.startswith("--")]
        lines = [line for line in _code(text).replace("\\\n", " ").splitlines() if line.strip().startswith("octavo ")]
        named |= {
            (path, flag) for part in [*spans, *lines] for flag in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", part)
        }
    assert len(named) > 50
    assert sorted(pair for pair in named if pair[1] not in known) == []


def test_every_page_is_in_the_table_of_contents_and_every_command_has_one() -> None:
    contents = re.findall(r": ([\w/.-]+\.md)$", texts()["mkdocs.yml"], re.MULTILINE)
    pages = {path.removeprefix("docs/") for path in DOCS if path.startswith("docs/")}
    assert len(contents) == len(set(contents))
    # The plan is dropped when it is done.
    assert set(contents) == pages - {"design/plan.md"}
    assert {f"commands/{name}.md" for name in COMMANDS} <= pages


def test_python_in_pages_can_be_read_and_imports_what_there_is() -> None:
    blocks = [
        (path, block) for path, text in DOCS.items() for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    ]
    # Others are excerpts.
    scripts = [(path, block) for path, block in blocks if re.search(r"^(from|import) ", block, re.MULTILINE)]
    assert len(scripts) >= 6
    for path, block in scripts:
        for node in ast.walk(ast.parse(textwrap.dedent(block))):
            if isinstance(node, ast.ImportFrom) and node.module == "octavo":
                assert {name.name for name in node.names} <= set(octavo.__all__), path


def test_commands_exist() -> None:
    named = {name for text in DOCS.values() for name in re.findall(r"\boctavo ([a-z]+)\b", _code(text))}
    assert {"serve", "chat"} <= named
    assert named - set(COMMANDS) - {"import"} == set()


def test_named_files_exist() -> None:
    pattern = re.compile(r"^(?:octavo|tests|tools|benchmarks|docs)/[\w/.-]*$")
    spans = {(path, span) for path, text in DOCS.items() for span in re.findall(r"`([^`\s]+)`", text)}
    lost = [(path, span) for path, span in spans if pattern.match(span) and not (ROOT / span).exists()]
    assert sorted(lost) == []


def test_links_lead_somewhere() -> None:
    lost = []
    for path, text in DOCS.items():
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
            if "://" not in target and not (ROOT / PurePosixPath(path).parent / target).exists():
                lost.append((path, target))
    assert lost == []


def test_every_variable_is_documented() -> None:
    rows = set(re.findall(r"^\| `(\w+)` \|", DOCS["docs/environment.md"], re.MULTILINE))
    assert set(known_variables()) - rows == set()
    read = set(re.findall(r'"([A-Z][A-Z_]+)"', texts()["octavo/base/env.py"]))
    assert rows - read == set()


def test_no_machine_of_ours_is_named() -> None:
    found = [
        f"{path}:{number}: {line.strip()}"
        for path, text in texts().items()
        for number, line in enumerate(text.splitlines(), 1)
        if PLACES.search(line) or HOSTS.search(line)
    ]
    assert found == []
