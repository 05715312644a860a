"""Which dialect a model speaks, by its template and by name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from octavo.base.errors import ConfigError, PluginError
from octavo.frontend.text.chat import ChatTemplate
from octavo.frontend.text.dialects import families as room
from octavo.frontend.text.dialects.families import Dialect, families, find_dialect
from octavo.frontend.text.dialects.parser import TurnParser
from tests.host.text.dialects.templates import TEMPLATES
from tests.host.text.dialects.transcripts import SCHEMAS, events_of, said

# Names that vLLM has for forms which are read here.
VLLM_CALLS = """deepseek_v3 deepseek_v31 deepseek_v32 ernie45 glm45 glm47 granite granite-20b-fc granite4 hermes hunyuan_a13b
    internlm jamba
    kimi_k2 lfm2 llama3_json llama4_json llama4_pythonic longcat mimo minimax_m2 mistral olmo3 openai phi4_mini_json
    pythonic qwen3_coder qwen3_json qwen3_xml seed_oss step3p5 xlam cohere_command3"""
VLLM_REASONING = """deepseek_r1 deepseek_v3 ernie45 glm45 glm47 openai_gptoss granite holo2 hunyuan_a13b kimi_k2 mimo minimax_m2
    minimax_m2_append_think mistral nemotron_v3 olmo3 qwen3 seed_oss step3 step3p5 cohere_command3"""


@pytest.mark.parametrize("row", TEMPLATES, ids=[row[0] for row in TEMPLATES])
def test_the_template_tells(row: tuple[str, str, str, str]) -> None:
    _, calls, reasoning, template = row
    ChatTemplate(template)
    assert find_dialect("auto", "auto", template) == find_dialect(calls, reasoning, None)


def test_a_name_goes_before_the_template() -> None:
    harmony = find_dialect("openai", "openai_gptoss", None)
    assert find_dialect("none", "auto", "<|channel|><|message|>") == harmony
    assert find_dialect("mistral", "none", "<tool_call><think>") == find_dialect("mistral", "none", "")
    assert find_dialect("auto", "auto", None) == Dialect()


def test_vllm_s_names_are_known_and_no_name_is_given_twice() -> None:
    for name in VLLM_CALLS.split():
        assert find_dialect(name, "none", None) != Dialect(), name
    for name in VLLM_REASONING.split():
        assert find_dialect("none", name, None) != Dialect(), name
    for sides in ([f.calls or f.harmony for f in families()], [f.reasoning or f.harmony for f in families()]):
        names = [name for side in sides if side is not None for name in side.names]
        assert len(names) == len(set(names))


def test_the_page_on_tools_lists_them() -> None:
    page = (Path(__file__).parents[4] / "docs" / "tools.md").read_text(encoding="utf-8")
    for word, sides in (("calls", [f.calls for f in families()]), ("thoughts", [f.reasoning for f in families()])):
        found = re.search(rf"^Of {word}: (.*?)\.$", page, re.MULTILINE | re.DOTALL)
        assert found is not None
        whole = [f.harmony for f in families()]
        names = sorted(name for side in (*sides, *whole) if side is not None for name in side.names)
        assert found[1].replace("`", "").split() == names


def test_unknown_names() -> None:
    with pytest.raises(ConfigError, match="did you mean 'hermes'") as error:
        find_dialect("hermess", "auto", None)
    assert error.value.field == "tool_call_parser"
    with pytest.raises(ConfigError) as error:
        find_dialect("auto", "qwen33", None)
    assert error.value.field == "reasoning_parser"


def test_every_pair_can_be_read() -> None:
    """Markers of one side must not hide in those of the other."""
    for calls in families():
        for reasoning in families():
            dialect = Dialect(calls=calls.calls, reasoning=reasoning.reasoning)
            reads = TurnParser(dialect, SCHEMAS, lambda index, own: own, tokens=["<|some_token|>"])
            assert reads.push("a b ") + reads.end() != []


def test_a_file_that_describes_no_dialect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_FOLDER", tmp_path)
    (tmp_path / "mine.toml").write_text('[calls]\nform = "json"\nnames = ["mine"]\nbegin = ["@@"]\n')
    assert events_of(find_dialect("mine", "none", None), ["a @@ b"]) == [said("a @@ b")]
    (tmp_path / "mine.toml").write_text('[calls]\nform = "json"\nnames = ["mine"]\nstart = ["@@"]\n')
    with pytest.raises(PluginError, match=r"mine\.toml"):
        find_dialect("auto", "auto", None)
