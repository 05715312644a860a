"""Two GPUs over NCCL, with graphs: the answers of one, and both cards free again whoever dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from octavo.base.errors import ConfigError, EngineDeadError
from octavo.protocol.sampling import SamplingParams
from tests.models.oracle import make_oracle
from tests.multi.models import MODELS, PROMPTS, answer, assert_same, gone, open_llm, rank_processes, save_model
from tests.multi.test_failures import signal_in_generation

pytestmark = pytest.mark.gpu2

MESHES: list[dict[str, Any]] = [{"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}]


def free_memory() -> list[int]:
    return [torch.cuda.mem_get_info(index)[0] for index in range(2)]  # noqa: TID251


def test_sums_through_peer_memory_are_right_in_graphs() -> None:
    command = [sys.executable, "-m", "benchmarks.ops.sums"]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout.splitlines()
    assert said[0] == "NCCL, small sums through peer memory"
    assert [line.split("|")[-2].strip() for line in said[3:]] == ["True"] * 12


@pytest.mark.parametrize("name", MODELS)
def test_answers_equal_those_of_one_gpu(tmp_path: Path, name: str) -> None:
    save_model(name, tmp_path)
    with open_llm(tmp_path, device="cuda") as alone:
        expected = answer(alone)
        plain = greedy(alone)
    for mesh in MESHES:
        spread = {"enable_expert_parallel": True} if "moe" in name and "tensor_parallel_size" in mesh else {}
        with open_llm(tmp_path, device="cuda", **mesh, **spread) as llm:
            decisions = llm._local.engine.ready.decisions
            assert "decode steps are replayed as graphs" in decisions
            assert any(line.startswith("ranks: NCCL, small sums through peer memory") for line in decisions)
            assert_same(answer(llm), expected)
            assert_same(answer(llm, PROMPTS[::-1]), expected[::-1])
            # Chosen inside the graph, too.
            same = sum(one == other for one, other in zip(greedy(llm), plain, strict=True))
            assert same >= len(plain) - 1


def greedy(llm: Any) -> list[tuple[int, ...]]:
    """Return the ids of rows that steps choose for inside a graph: greedy ones, then drawn ones."""
    found = list[tuple[int, ...]]()
    for temperature in (0.0, 0.8):
        params = SamplingParams(temperature=temperature, seed=3, max_tokens=24, ignore_eos=True)
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], params, use_tqdm=False)
        found += [tuple(output.outputs[0].token_ids) for output in outputs]
    return found


def test_layers_of_few_rows_are_one_op_on_both_cards_and_memory_has_owners(tmp_path: Path) -> None:
    """In bfloat16, of heads that the kernels take: near one card's, up to a choice that was close."""
    shape = {
        "hidden_size": 256,
        "intermediate_size": 512,
        "head_dim": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    oracle = make_oracle("qwen3", shape)
    with torch.no_grad():
        for parameter in oracle.parameters():
            if parameter.ndim > 1:
                parameter.mul_(0.2)
    oracle.to(torch.bfloat16).save_pretrained(tmp_path)
    found: list[list[Any]] = []
    for ranks in (1, 2):
        with open_llm(tmp_path, device="cuda", dtype="bfloat16", tensor_parallel_size=ranks) as llm:
            assert "layers in steps of few rows: one op" in llm._local.engine.ready.decisions
            found.append(answer(llm, num_tokens=24))
            ledgers = llm.collective_rpc("memory")
    for ledger in ledgers:
        assert ledger["ranks"] > 2**20
        assert sum(ledger.values()) == torch.cuda.mem_get_info(0)[1]  # noqa: TID251
    compared = 0
    for one, two in zip(*found, strict=True):
        for place, gap in enumerate(one.gaps):
            if one.ids[place] != two.ids[place]:
                assert gap < 0.1
                break
            assert abs(one.chosen[place] - two.chosen[place]) < 0.05
            compared += 1
    assert compared > 40


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_dies_or_hangs_frees_both_cards(tmp_path: Path, number: int) -> None:
    before = free_memory()
    says = "rank 1 was killed by SIGKILL" if number == signal.SIGKILL else "rank 1 gives no sign of life"
    save_model("llama-tied", tmp_path)
    with open_llm(tmp_path, tensor_parallel_size=2, device="cuda", distributed_timeout_seconds=4) as llm:
        pids = rank_processes(os.getpid())
        assert all(now < free - 2**28 for now, free in zip(free_memory(), before, strict=True))
        when = signal_in_generation(llm, pids[1], number)
        with pytest.raises(EngineDeadError, match=says):
            answer(llm, PROMPTS * 50, num_tokens=80)
        assert time.monotonic() - when[0] < 12
        assert gone(pids, 5)
    until = time.monotonic() + 10
    while any(now < free - 2**27 for now, free in zip(free_memory(), before, strict=True)):
        assert time.monotonic() < until, "a card is not free again"
        time.sleep(0.1)


def test_a_rank_without_a_card_is_refused(tmp_path: Path) -> None:
    save_model("llama-tied", tmp_path)
    count = torch.cuda.device_count()  # noqa: TID251
    options = {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}
    with pytest.raises(ConfigError, match=rf"rank \d has no GPU of its own: there are {count}"):
        open_llm(tmp_path, device="cuda", **options).shutdown()
    assert gone(rank_processes(os.getpid()), 5)
