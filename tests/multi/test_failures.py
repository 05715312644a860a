"""A rank that dies or hangs ends the engine with a clear error, and nobody is left behind, whoever is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest

from octavo.base.errors import EngineDeadError
from octavo.llm import LLM, AsyncLLM
from octavo.protocol.control import Ack, Barrier, Call
from octavo.protocol.sampling import SamplingParams
from octavo.worker.executors.multiproc import merge_acks
from tests.multi.models import PROMPTS, answer, gone, open_llm, rank_processes, save_model


def signal_in_generation(llm: LLM, pid: int, number: int) -> list[float]:
    """Signal a process once tokens flow; returns a list that will hold the time of that."""
    when: list[float] = []

    def run() -> None:
        while llm.get_stats().generated_tokens < 8:
            time.sleep(0.001)
        when.append(time.monotonic())
        os.kill(pid, number)

    threading.Thread(target=run, daemon=True).start()
    return when


def test_controls_reach_every_rank_and_a_killed_rank_is_named(tmp_path: Path) -> None:
    with open_llm(save_model("llama-tied", tmp_path), tensor_parallel_size=2, pipeline_parallel_size=2) as llm:
        pids = rank_processes(os.getpid())
        assert llm._offline.control(Barrier()).ok
        core = llm._local.engine.core
        executor = core._executor
        assert executor.pids == pids
        assert not llm._offline.control(Call(method="nonsense")).ok
        when = signal_in_generation(llm, pids[2], signal.SIGKILL)
        with pytest.raises(EngineDeadError, match=r"rank 2 was killed by SIGKILL"):
            answer(llm, num_tokens=50)
        assert time.monotonic() - when[0] < 5
        assert gone(pids, 2)
        with pytest.raises(EngineDeadError, match="rank 2 was killed"):
            answer(llm, num_tokens=1)


def test_a_rank_that_hangs_is_named(tmp_path: Path) -> None:
    save_model("llama-tied", tmp_path)
    with open_llm(tmp_path, tensor_parallel_size=2, distributed_timeout_seconds=4) as llm:
        pids = rank_processes(os.getpid())
        signal_in_generation(llm, pids[1], signal.SIGSTOP)
        with pytest.raises(EngineDeadError, match=r"rank 1 gives no sign of life: plan \d+ has no result after 4 s"):
            answer(llm, num_tokens=50)
        assert gone(pids, 2)


def test_an_idle_engine_process_notices_its_rank(tmp_path: Path) -> None:
    save_model("llama-tied", tmp_path)
    with open_llm(tmp_path) as llm:
        expected = answer(llm, PROMPTS[:1])[0].ids

    async def run() -> None:
        options = {"skip_tokenizer_init": True, "dtype": "float32", "max_model_len": 128, "kv_cache_memory": 2**20}
        engine = AsyncLLM(tmp_path, pipeline_parallel_size=2, **options)
        params = SamplingParams(temperature=0.0, max_tokens=len(expected), ignore_eos=True)
        prompt = {"prompt_token_ids": PROMPTS[0]}
        async for output in engine.generate(prompt, params):
            ids = output.outputs[0].token_ids
        assert ids == expected
        service = await engine._service()
        engine_pid = engine._process.pid
        pids = rank_processes(engine_pid)
        os.kill(pids[0], signal.SIGKILL)
        until = time.monotonic() + 5
        while service.healthy:
            assert time.monotonic() < until
            await asyncio.sleep(0.05)
        with pytest.raises(EngineDeadError, match="rank 0 was killed by SIGKILL"):
            await anext(engine.generate(prompt, params))
        assert gone((engine_pid, *pids), 5)
        engine.shutdown()

    asyncio.run(run())


_PARENT = """
import sys, time
from pathlib import Path
from octavo.worker.executors.multiproc import merge_acks
from tests.multi.models import answer, open_llm
llm = open_llm(Path(sys.argv[1]), tensor_parallel_size=2)
executor = llm._local.engine.core._executor
print(*executor.pids, executor._folder, flush=True)
while True:
    answer(llm)
"""


def test_a_killed_parent_leaves_no_rank_and_no_file(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _PARENT, str(save_model("llama-tied", tmp_path))]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    *pids, folder = parent.stdout.readline().split()
    time.sleep(0.3)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert gone(tuple(int(pid) for pid in pids), 5)
    assert not os.path.exists(folder)


def test_every_rank_answers_a_call() -> None:
    acks = [Ack(ticket=3, value=msgspec.msgpack.encode({"pages": n})) for n in (7, 8)]
    merged = merge_acks(acks)
    assert (merged.ticket, merged.ok, merged.message) == (3, True, "")
    assert msgspec.msgpack.decode(merged.value) == [{"pages": 7}, {"pages": 8}]
    refused = merge_acks([acks[0], Ack(ticket=3, ok=False, message="no such method")])
    assert (refused.ok, refused.message) == (False, "no such method")
