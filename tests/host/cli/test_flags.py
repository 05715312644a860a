"""Flags are the option records, and back; the page of flags is true."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from octavo.base.errors import ConfigError
from octavo.config.cache import CacheConfig
from octavo.config.device import ParallelConfig
from octavo.config.engine import EngineConfig
from octavo.config.flags import (
    FlagParser,
    add_engine_flags,
    add_model,
    add_serve_flags,
    command_line,
    engine_config,
    flags_of,
    given_options,
    serve_config,
)
from octavo.config.model import ModelConfig
from octavo.config.schedule import ScheduleConfig
from octavo.config.serve import ServeConfig
from tools.flags_page import render_markdown


def _parser() -> FlagParser:
    parser = FlagParser(prog="octavo serve")
    add_model(parser)
    add_engine_flags(parser)
    add_serve_flags(parser)
    return parser


def _parse(*arguments: str) -> Any:
    return _parser().parse_args(list(arguments))


def test_every_field_of_every_record_is_a_flag_and_in_the_help() -> None:
    text = _parser().format_help()
    for record in (ModelConfig, CacheConfig, ScheduleConfig, ParallelConfig, ServeConfig):
        for field in fields(record):
            assert f"--{field.name.replace('_', '-')}" in text


def test_nothing_given_is_the_defaults() -> None:
    assert engine_config(_parse()) == EngineConfig()
    assert serve_config(_parse()) == ServeConfig()


def test_every_kind_of_flag() -> None:
    parsed = _parse(
        "some/model",
        "--dtype=float32",
        "--max_model_len",
        "2k",
        "--kv-cache-memory=4GiB",
        "--gpu-memory-utilization",
        "0.5",
        "--no-enable-prefix-caching",
        "--skip_tokenizer_init",
        "--served-model-name",
        "a",
        "b_c",
        "--port",
        "0",
    )
    engine, server = engine_config(parsed), serve_config(parsed)
    assert (engine.model.model, engine.model.dtype, engine.model.max_model_len) == ("some/model", "float32", 2000)
    assert (engine.cache.kv_cache_memory, engine.cache.gpu_memory_utilization) == (4 * 2**30, 0.5)
    assert (engine.cache.enable_prefix_caching, engine.model.skip_tokenizer_init) == (False, True)
    assert (server.served_model_name, server.port) == (("a", "b_c"), 0)


@pytest.mark.parametrize(
    ("text", "value"), [("7", 7), ("1k", 1000), ("1K", 1024), ("2m", 2_000_000), ("3MiB", 3 * 2**20), ("1G", 2**30)]
)
def test_whole_numbers(text: str, value: int) -> None:
    assert engine_config(_parse("--kv-cache-memory", text)).cache.kv_cache_memory == value


def test_the_model_with_its_flag_and_the_spellings_of_vllm() -> None:
    flags = ("--kv-cache-memory-bytes", "5", "--num_gpu_blocks_override=6", "--device-memory-utilization", "0.25")
    engine = engine_config(_parse("--model", "x_y", *flags))
    assert engine.cache.gpu_memory_utilization == 0.25
    assert (engine.model.model, engine.cache.kv_cache_memory, engine.cache.num_pages) == ("x_y", 5, 6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-model-length", "3"], "unknown flag --max-model-length; did you mean --max-model-len?"),
        (["--max_num_seq=3"], "unknown flag --max-num-seq; did you mean --max-num-seqs?"),
        (["--zebra"], "unknown flag --zebra (see"),
        (["model", "second"], "unexpected argument 'second'"),
        (["--dtype", "int3"], "invalid choice: 'int3'"),
        (["--port", "http"], "--port: must be a whole number, not 'http'"),
        (["--max-num-seqs", "2.5"], "--max-num-seqs: must be a whole number, not '2.5'"),
        (["--shutdown-timeout", "nan"], "--shutdown-timeout: must be a number, not 'nan'"),
        (["--max-model"], "unknown flag --max-model;"),
        (["--hf-overrides", "[1]"], "--hf-overrides: must be a JSON object, not '[1]'"),
        (["--hf-overrides", "rope"], "--hf-overrides: must be a JSON object, not 'rope'"),
    ],
)
def test_wrong_command_lines(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    with pytest.raises(SystemExit) as ended:
        _parse(*arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "field", "span"),
    [
        (["--port", "70000"], "port", "between 0 and 65535"),
        (["--max-num-seqs", "0"], "max_num_seqs", "between 1 and 65536"),
        (["--max-model-len", "-5"], "max_model_len", "at least 1"),
        (["--max-num-queued-tokens", "-1"], "max_num_queued_tokens", "at least 0"),
        (["--queue-timeout", "-0.5"], "queue_timeout", "at least 0"),
        (["--max-restarts", "0"], "max_restarts", "between 1 and 1000"),
    ],
)
def test_out_of_range(arguments: list[str], field: str, span: str) -> None:
    parsed = _parse(*arguments)
    with pytest.raises(ConfigError, match=span) as caught:
        serve_config(parsed) if field in ("port", "max_restarts") else engine_config(parsed)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("flag", "good", "bad"), [("restart-policy", "never", "always"), ("log-format", "json", "xml")]
)
def test_one_of_a_few_words(capsys: pytest.CaptureFixture[str], flag: str, good: str, bad: str) -> None:
    assert getattr(serve_config(_parse(f"--{flag}", good)), flag.replace("-", "_")) == good
    with pytest.raises(SystemExit):
        _parse(f"--{flag}", bad)
    assert f"--{flag}" in (said := capsys.readouterr().err)
    assert good in said


def test_command_line_is_the_inverse_of_parsing() -> None:
    options = {"model": "a b", "max_model_len": 64, "enable_prefix_caching": False, "skip_tokenizer_init": True}
    options |= {"scheduling_policy": "priority", "gpu_memory_utilization": 0.25}
    options |= {"hf_overrides": {"rope_scaling": None, "a b": [1, "x"]}}
    parsed = _parse(*command_line(options))
    assert given_options(parsed) == options
    named = _parse(*command_line({"served_model_name": ("x", "y")}))
    assert serve_config(named).served_model_name == ("x", "y")


def test_ranks_have_short_flags() -> None:
    parallel = engine_config(_parse("-tp", "2", "-pp=3", "--distributed-timeout-seconds", "7")).parallel
    assert (parallel.tensor_parallel_size, parallel.pipeline_parallel_size) == (2, 3)
    assert parallel.distributed_timeout_seconds == 7.0
    assert "| `--tensor-parallel-size`, `-tp` | N |" in render_markdown()


def test_flags_say_their_range_and_default() -> None:
    flags = {flag.name: flag for record in (CacheConfig, ServeConfig) for flag in flags_of(record)}
    assert (flags["block_size"].range_text, flags["block_size"].default_text) == ("between 16 and 128", "none")
    assert (flags["port"].range_text, flags["port"].default_text) == ("between 0 and 65535", "8000")
    assert flags["enable_prefix_caching"].default_text == "on"
    assert (flags["served_model_name"].many, flags["served_model_name"].value) == (True, "TEXT ...")
