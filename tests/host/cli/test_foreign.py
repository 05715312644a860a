"""Flags of vLLM's: each is ours, accepted with a note, or refused with a reason; and flags from a file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from octavo.base.errors import ConfigError
from octavo.cli.main import main
from octavo.config.engine import EngineConfig
from octavo.config.flags import (
    FlagParser,
    add_engine_flags,
    add_model,
    add_serve_flags,
    engine_config,
    own_flags,
    serve_config,
)
from octavo.config.foreign import FOREIGN, SHORT
from tests.server.harness import logged_lines
from tools import pages, vllm_flags

ROOT = Path(__file__).resolve().parents[3]
INVENTORY = [flag for names in vllm_flags.GROUPS.values() for flag in names.split()]


def _parse(*arguments: str) -> Any:
    parser = FlagParser(prog="octavo serve")
    add_model(parser)
    add_engine_flags(parser)
    add_serve_flags(parser)
    return parser.parse_args(list(arguments))


def test_no_row_is_silent() -> None:
    assert len(INVENTORY) == len(set(INVENTORY)) == 317
    states = {flag: vllm_flags.state(flag) for flag in INVENTORY}
    assert {state for state, _ in states.values()} == {"supported", "accepted", "refused"}
    assert [flag for flag, (_, why) in states.items() if len(why) < 15] == []
    assert [name for name in FOREIGN if name.replace("_", "-") not in INVENTORY] == ["swap_space"]


def test_every_supported_flag_names_a_test_that_exists() -> None:
    supported = {flag for flag in INVENTORY if vllm_flags.state(flag)[0] == "supported"}
    assert set(vllm_flags.TESTS) == supported
    for flag, test in vllm_flags.TESTS.items():
        path, _, name = test.partition("::")
        text = (ROOT / "tests" / path).read_text(encoding="utf-8")
        assert re.search(rf"^def {name}\(", text, re.MULTILINE), f"{flag}: {path} has no {name}"


def test_no_row_is_dead() -> None:
    assert set(FOREIGN) & own_flags() == set(), "these are options of our own now: take their rows away"


@pytest.mark.parametrize("page", list(pages.PAGES))
def test_generated_pages_are_true(page: str) -> None:
    written = (pages.DOCS / page).read_text(encoding="utf-8")
    assert written == pages.PAGES[page](), "write the generated pages anew: python -m tools.pages"


@pytest.mark.parametrize("name", sorted(FOREIGN))
def test_a_flag_is_accepted_with_a_note_or_refused_with_a_reason(name: str, caplog: pytest.LogCaptureFixture) -> None:
    row = FOREIGN[name]
    flag = "--" + name.replace("_", "-")
    given = [flag] if row.takes == "nothing" else [flag, "7", "8"] if row.takes == "many" else [flag, "7"]
    with logged_lines(caplog):
        if row.refused:
            with pytest.raises(ConfigError) as caught:
                _parse("some/model", *given)
            assert (caught.value.field, caught.value.message) == (name, f"{name} is not supported: {row.why}")
        else:
            assert _parse("some/model", *given).model == "some/model"
            assert caplog.messages == [f"{name} changes nothing: {row.why}"]
            caplog.clear()
        for value in row.harmless or ():
            assert _parse(f"{flag}={value}", "some/model").model == "some/model"
        if row.takes == "nothing":
            _parse(flag.replace("--", "--no-"))
        assert all(line == f"{name} changes nothing: {row.why}" for line in caplog.messages)


def test_arguments_of_python_are_treated_alike(caplog: pytest.LogCaptureFixture) -> None:
    with logged_lines(caplog):
        accepted = {
            "enable_chunked_prefill": True,
            "quantization": None,
            "enable_lora": False,
            "model_impl": "auto",
        }
        config = EngineConfig.from_options({**accepted, "max_num_seqs": 3})
    assert config.schedule.max_num_seqs == 3
    assert len(caplog.messages) == 3
    assert caplog.messages[0].startswith("enable_chunked_prefill changes nothing: prompts are always computed in parts")
    caplog.clear()
    with logged_lines(caplog):
        assert EngineConfig.from_options({"disable_log_stats": True, "max_logprobs": 5}) == EngineConfig()
    assert caplog.messages[0] == "disable_log_stats changes nothing: it is an option of the server, and there is none"
    with pytest.raises(ConfigError, match="enable_lora is not supported: Octavo does not do this yet"):
        EngineConfig.from_options({"enable_lora": True})


def test_short_spellings() -> None:
    assert set(SHORT.values()) <= set(FOREIGN)
    with pytest.raises(ConfigError, match="node_rank is not supported"):
        _parse("-r", "1")
    assert _parse("-O", "3", "m").model == "m"


def test_a_refused_flag_ends_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "demo", "--enable_lora"]) == 2
    assert capsys.readouterr().err == (
        "octavo serve: error: enable_lora is not supported: Octavo does not do this yet (--enable-lora)\n"
    )


def test_types_by_their_other_names() -> None:
    for given, dtype in (("half", "float16"), ("float", "float32"), ("bfloat16", "bfloat16"), ("auto", "auto")):
        assert engine_config(_parse("--dtype", given)).model.dtype == dtype
        assert EngineConfig.from_options({"dtype": given}).model.dtype == dtype


def test_auto_is_as_if_nothing_was_given() -> None:
    engine = engine_config(_parse("--max-model-len", "auto", "--block-size=auto"))
    assert (engine.model.max_model_len, engine.cache.block_size) == (None, None)


def test_several_values_in_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert serve_config(_parse("--allowed-origins", '["a", "b"]', "c")).allowed_origins == ("a", "b", "c")
    with pytest.raises(SystemExit):
        _parse("--allowed-origins", "[1]")
    assert "must be texts, or a JSON list of them, not '[1]'" in capsys.readouterr().err


def test_a_file_of_flags(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text(
        "model: from/file\nmax-model-len: 8k\nmax_num_seqs: 5\nenable-prefix-caching: false\nport: 9000\n"
        "served-model-name: [a, b]\nhf-overrides: {rope_theta: 5}\nchat_template: null\nenable-chunked-prefill: true\n"
    )
    with logged_lines(caplog):
        parsed = _parse("--config", str(file), "--port", "9001")
    engine, server = engine_config(parsed), serve_config(parsed)
    assert (engine.model.model, engine.model.max_model_len, engine.schedule.max_num_seqs) == ("from/file", 8000, 5)
    assert (engine.cache.enable_prefix_caching, engine.model.hf_overrides) == (False, {"rope_theta": 5})
    assert (server.served_model_name, server.port) == (("a", "b"), 9001)
    assert len(caplog.messages) == 1
    # The command line goes before the file.
    assert engine_config(_parse("mine", f"--config={file}", "--max-num-seqs", "6")).model.model == "mine"
    assert engine_config(_parse("mine", f"--config={file}", "--max-num-seqs", "6")).schedule.max_num_seqs == 6


@pytest.mark.parametrize(
    ("text", "message"),
    [("- a\n", "must hold flags and their values"), ("a: [\n", "cannot be read"), ("", "must hold flags")],
)
def test_files_that_hold_no_flags(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        _parse("--config", str(file))
    assert caught.value.field == "config"
    with pytest.raises(ConfigError, match="No such file"):
        _parse("--config", str(tmp_path / "none.yaml"))


def test_a_wrong_flag_in_a_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text("max-model-length: 3\n")
    with pytest.raises(SystemExit):
        _parse("--config", str(file))
    assert "unknown flag --max-model-length; did you mean --max-model-len?" in capsys.readouterr().err
