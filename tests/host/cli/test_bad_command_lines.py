"""Command lines that cannot be obeyed: each ends with one line that says what is wrong, and with the right status."""

from __future__ import annotations

import io
import socket
from pathlib import Path

import pytest

from octavo.cli import bench
from octavo.cli.main import COMMANDS, main

# A port of this machine on which nobody listens.
NOBODY = "http://127.0.0.1:9"
# (arguments, exit status, what the line says). {file}: a file of one request; {empty}: an empty one; {folder}; {port}: taken.
CASES: list[tuple[str, int, str]] = [
    ("", 2, "usage: octavo COMMAND"),
    ("srve demo", 2, "unknown command 'srve'; did you mean 'serve'?"),
    ("--serve", 2, "unknown command '--serve'"),
    ("serve demo extra", 1, "no model 'extra'"),
    ("serve demo --port 0 extra", 2, "unexpected argument 'extra'"),
    ("chat demo extra", 2, "unexpected argument 'extra'"),
    ("serve demo --zebra", 2, "unknown flag --zebra"),
    ("serve demo --max-model-length 5", 2, "unknown flag --max-model-length; did you mean --max-model-len?"),
    ("serve demo --max-model-len", 2, "--max-model-len: expected one argument"),
    ("serve demo --max-model-len many", 2, "--max-model-len: must be a whole number, not 'many'"),
    ("serve demo --max-model-len 0", 2, "max_model_len must be at least 1, not 0 (--max-model-len)"),
    ("serve demo --max-model-len 1.5k", 2, "--max-model-len: must be a whole number, not '1.5k'"),
    ("serve demo --dtype int3", 2, "--dtype: invalid choice: 'int3'"),
    ("serve demo --gpu-memory-utilization 2", 2, "gpu_memory_utilization must be between 0.01 and 1, not 2.0"),
    ("serve demo --gpu-memory-utilization inf", 2, "--gpu-memory-utilization: must be a number, not 'inf'"),
    ("serve demo --block-size 4", 2, "block_size must be between 16 and 128, not 4"),
    ("serve demo --max-num-batched-tokens 0", 2, "max_num_batched_tokens must be at least 1, not 0"),
    ("serve demo -tp 0", 2, "tensor_parallel_size must be between 1 and 1024, not 0"),
    ("serve demo --hf-overrides {", 2, "--hf-overrides: must be a JSON object, not '{'"),
    ("serve demo --scheduling-policy random", 2, "--scheduling-policy: invalid choice: 'random'"),
    ("serve demo --port 70000", 2, "port must be between 0 and 65535, not 70000"),
    ("serve demo --port {port}", 2, "cannot listen on 127.0.0.1:{port}: Address already in use (--port)"),
    ("serve demo --host no.such.host.invalid", 2, "host 'no.such.host.invalid' is not an address"),
    ("serve demo --uds {folder}", 2, "cannot listen on {folder}: Address already in use (--uds)"),
    ("serve demo --ssl-keyfile {file}", 2, "ssl_keyfile needs ssl_certfile"),
    ("serve demo --ssl-certfile {file}", 2, "HTTPS cannot be served: "),
    ("serve demo --ssl-cert-reqs 3", 2, "ssl_cert_reqs must be between 0 and 2, not 3"),
    ("serve demo --metrics-names sglang", 2, "--metrics-names: invalid choice: 'sglang'"),
    ("serve demo --log-stats-interval 0", 2, "log_stats_interval must be at least 0.1, not 0"),
    ("serve demo --allowed-origins [1]", 2, "must be texts, or a JSON list of them, not '[1]'"),
    ("serve demo --config {folder}/none.yaml", 2, "none.yaml cannot be read: "),
    ("serve demo --config {file}", 2, "unknown flag --custom-id"),
    ("serve demo --config {empty}", 2, "must hold flags and their values"),
    ("serve demo --quantization awq", 2, "argument --quantization: invalid choice: 'awq' (choose from "),
    ("serve demo --enable-lora", 2, "enable_lora is not supported: Octavo does not do this yet (--enable-lora)"),
    ("serve demo --hf-token x", 2, "hf_token is not supported: a token on the command line"),
    ("serve demo --pipeline-parallel-size two", 2, "-pp/--pipeline-parallel-size: must be a whole number, not 'two'"),
    ("run --raw", 2, "the prompt is empty"),
    ("run x --temperature hot", 2, "--temperature: invalid float value: 'hot'"),
    ("run x --temperature -1", 2, "temperature must be between 0 and 100, not -1.0 (--temperature)"),
    ("run x --max-tokens 0", 2, "max_tokens must be between 1 and 2147483647, not 0"),
    ("run x --top-p 0", 2, "top_p must be in (0, 1], not 0.0"),
    ("run x --raw --system y", 2, "a raw text has no system prompt"),
    ("run x y", 2, "unexpected argument 'y'"),
    (f"run x --url {NOBODY}", 1, f"{NOBODY} does not answer"),
    ("chat -q x --top-k -2", 2, "top_k must be between -1 and 2147483647, not -2"),
    (f"chat -q x --url {NOBODY}", 1, f"{NOBODY} does not answer"),
    ("chat demo --max-tokens ten", 2, "--max-tokens: invalid int value: 'ten'"),
    ("batch", 2, "the following arguments are required: IN, OUT"),
    ("batch {file}", 2, "the following arguments are required: OUT"),
    ("batch {folder}/none {folder}/out", 2, "there is no file {folder}/none"),
    ("batch {folder} {folder}/out", 2, "there is no file {folder}"),
    ("batch {file} {file}", 2, "the answers cannot go into the file of the requests"),
    ("batch {file} {folder}", 2, "{folder} is a folder, or lies in none"),
    ("batch {file} {folder}/a/b", 2, "{folder}/a/b is a folder, or lies in none"),
    ("batch {file} {folder}/out --concurrency 0", 2, "concurrency must be at least 1, not 0"),
    ("batch {file} {other}", 1, "exists and is no output of a batch; choose another name"),
    ("bench", 2, "usage: octavo bench KIND"),
    ("bench ofline", 2, "unknown kind 'ofline'; did you mean 'offline'?"),
    ("bench offline --dataset-name huge", 2, "--dataset-name: invalid choice: 'huge'"),
    ("bench offline --num-iters 0", 2, "num_iters must be at least 1, not 0"),
    ("bench offline --dataset-name custom", 2, "--dataset-name custom needs a file (--dataset-path)"),
    ("bench offline --dataset-name custom --dataset-path {folder}/none", 2, "none cannot be read: FileNotFoundError"),
    ("bench offline --dataset-name timed_trace --dataset-path {file}", 2, "cannot be read: KeyError: 'timestamp'"),
    ("bench offline --dataset-name custom --dataset-path {empty}", 2, "holds no prompts"),
    ("bench offline --num-prompts 0", 2, "num_prompts must be at least 1, not 0"),
    ("bench latency --batch-size 0", 2, "batch_size must be at least 1, not 0"),
    ("bench latency --num-iters-warmup -1", 2, "num_iters_warmup must be at least 0, not -1"),
    ("bench startup --num-iters 0", 2, "num_iters must be at least 1, not 0"),
    ("bench serve --request-rate 0", 2, "--request-rate: must be a number above 0, not '0'"),
    ("bench serve --burstiness -1", 2, "--burstiness: must be a number above 0, not '-1'"),
    ("bench serve --metric-percentiles 50,101", 2, "metric_percentiles must be numbers from 0 to 100, not '50,101'"),
    ("bench serve --goodput fast:1", 2, "goodput takes ttft:MS, tpot:MS and e2el:MS, not 'fast:1'"),
    ("bench serve --extra-body [1]", 2, "extra_body must be a JSON object, not '[1]'"),
    ("bench serve --random-range-ratio 2", 2, "random_range_ratio must be between 0 and 1, not 2.0"),
    (f"bench serve --url {NOBODY} --num-prompts 1", 1, f"{NOBODY} names no model"),
    ("doctor --dtype int3", 2, "--dtype: invalid choice: 'int3'"),
    ("doctor {folder}/none.gguf", 1, "model: CheckpointError"),
    ("doctor demo --max-model-len 100k", 1, "max_model_len must be at most the model's 8192 positions, not 100000"),
    ("demo --qestion x", 2, "unknown flag --qestion; did you mean --question?"),
    ("demo --max-num-seqs many", 2, "--max-num-seqs: must be a whole number, not 'many'"),
]


@pytest.mark.parametrize(("line", "status", "message"), CASES, ids=[case[0] or "nothing" for case in CASES])
def test_bad_command_lines(
    line: str,
    status: int,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file, empty, other = tmp_path / "file", tmp_path / "empty", tmp_path / "other"
    file.write_text('{"custom-id": "a", "method": "POST", "url": "/v1/completions", "body": {}, "prompt": "x"}\n')
    empty.write_text("")
    other.write_text("a letter\n")
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    monkeypatch.setenv("OCTAVO_LOG_LEVEL", "INFO")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        places = {
            "{file}": file,
            "{empty}": empty,
            "{other}": other,
            "{folder}": tmp_path,
            "{port}": taken.getsockname()[1],
        }
        for mark, place in places.items():
            line, message = line.replace(mark, str(place)), message.replace(mark, str(place))
        try:
            got = main(line.split())
        except SystemExit as ended:
            got = ended.code
    shown = capsys.readouterr()
    text = shown.err or shown.out
    assert (got, message in text) == (status, True), text
    assert "Traceback" not in shown.err
    # One line, but for what shows a whole page.
    assert message.startswith("usage") or line.startswith("doctor") or len(shown.err.splitlines()) == 1


def test_every_command_has_bad_lines() -> None:
    commands = {line.split()[0] for line, _, _ in CASES if line}
    assert set(COMMANDS) <= commands
    kinds = {line.split()[1] for line, _, _ in CASES if line.startswith("bench ")}
    assert set(bench.KINDS) <= kinds
