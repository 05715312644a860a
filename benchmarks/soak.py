"""A server under mixed traffic for a long time: what it holds when it has nothing to do may not grow.

    python -m benchmarks.soak --minutes 30 [--model PATH] [--clients 6] [--seed 0] [--json FILE]

Clients ask for chats, streams, forms and long prompts, leave in the middle, send bodies that are wrong; every answer is checked.
Now and then all of them pause until the server is idle. Then nobody may hold a slot or a page, and memory, descriptors and
threads of every process are noted. After the first third, in which caches fill, none of them may grow. Ends with status 1 if one
does, or if an answer was not the one that had to come. Without --model a tiny one with random weights is made.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

# Seconds between two pauses; what a server may take to have nothing left; what may be lost to noise from first to last.
_PAUSE_EVERY, _IDLE_SECONDS = 15.0, 5.0
_SLACK = {"memory_mb": 12.0, "descriptors": 3.0, "threads": 2.0}
_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 259,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "eos_token_id": 258,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}
_FORM = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}}, "required": ["a", "b"]}
_BAD: list[tuple[str, bytes]] = [
    ("/v1/completions", b'{"prompt": "x", "temperature": "hot"}'),
    ("/v1/completions", b'{"prompt": ['),
    ("/v1/completions", b'{"prompt": [999999]}'),
    ("/v1/chat/completions", b'{"messages": [{"role": "nobody", "content": "x"}]}'),
    ("/v1/chat/completions", b'{"messages": []}'),
    ("/v1/completions", b'{"prompt": "x", "structured_outputs": {"regex": "("}}'),
    ("/v1/completions", b'{"prompt": "' + b"x" * 5000 + b'"}'),
    ("/v1/nowhere", b"{}"),
]
_FLAGS = (
    *("--load-format", "dummy", "--max-model-len", "1024", "--num-pages", "80", "--max-num-seqs", "8"),
    *("--max-num-batched-tokens", "256", "--served-model-name", "soak", "--shutdown-timeout", "5"),
)


def save_model(folder: Path) -> Path:
    """Write a tiny model without weights, whose tokens are bytes; returns its folder."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = tokenizers.Tokenizer(models.BPE({letter: index for index, letter in enumerate(alphabet)}, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(["<s>", "</s>", "<end>"])
    core.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps(_CONFIG))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>"}))
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")
    return folder


class Traffic:
    """Clients that ask until they are told to end. open: cleared while all of them pause."""

    def __init__(self, url: str, num_clients: int, seed: int) -> None:
        self.counts: collections.Counter[str] = collections.Counter()
        self.wrong: list[str] = []
        self.open = asyncio.Event()
        self.ending = False
        self._http = httpx.AsyncClient(base_url=url, timeout=60, limits=httpx.Limits(max_connections=num_clients + 2))
        self._chance = random.Random(seed)
        self._num_asking = 0
        self._kinds: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (4, self._chat),
            (4, self._stream),
            (2, self._leave_stream),
            (1, self._leave),
            (2, self._bad),
            (2, self._form),
            (2, self._long),
            (1, self._look),
        ]
        self.tasks = [asyncio.create_task(self._client()) for _ in range(num_clients)]

    async def pause(self) -> None:
        """Let nobody ask any more, and wait until all have their answers."""
        self.open.clear()
        while self._num_asking:
            await asyncio.sleep(0.02)

    async def close(self) -> None:
        """End all clients."""
        self.ending = True
        self.open.set()
        await asyncio.gather(*self.tasks)
        await self._http.aclose()

    async def metrics(self) -> dict[str, float]:
        """Return every sample of the server's metrics."""
        rows = [line.rsplit(" ", 1) for line in (await self._http.get("/metrics")).text.splitlines() if line[:1] != "#"]
        return {name: float(value) for name, value in rows}

    async def _client(self) -> None:
        weights, kinds = zip(*self._kinds, strict=True)
        while True:
            await self.open.wait()
            if self.ending:
                return
            self._num_asking += 1
            (ask,) = self._chance.choices(kinds, weights)
            name = ask.__name__.strip("_").replace("_", " ")
            self.counts[name] += 1
            try:
                await ask()
            except (httpx.HTTPError, AssertionError, KeyError, ValueError) as error:
                self.wrong.append(f"{name}: {error!r}")
            self._num_asking -= 1

    def _text(self, most: int) -> str:
        return "".join(self._chance.choices("abcdefgh \n", k=self._chance.randint(1, most)))

    def _body(self, most: int = 200, **more: Any) -> dict[str, Any]:
        chance = self._chance
        sampling = {
            "temperature": chance.choice((0, 1)),
            "max_tokens": chance.randint(1, 60),
            "seed": chance.randrange(9),
        }
        return {"prompt": self._text(most), **sampling, "ignore_eos": True, **more}

    async def _post(self, body: dict[str, Any]) -> dict[str, Any]:
        answer = await self._http.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        found = answer.json()
        assert found["usage"]["completion_tokens"] == body["max_tokens"] * body.get("n", 1)
        return found

    async def _chat(self) -> None:
        body = self._body()
        chat = [{"role": "system", "content": "Be kind. " * 20}, {"role": "user", "content": body.pop("prompt")}]
        answer = await self._http.post("/v1/chat/completions", json={**body, "messages": chat})
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["finish_reason"] == "length"

    async def _stream(self) -> None:
        body = self._body(n=self._chance.choice((1, 1, 3)), stream=True, logprobs=self._chance.choice((None, 3)))
        async with self._http.stream("POST", "/v1/completions", json=body) as response:
            lines = [line async for line in response.aiter_lines() if line]
        assert lines.pop() == "data: [DONE]"
        ends = [json.loads(line[6:])["choices"][0]["finish_reason"] for line in lines]
        assert ends.count("length") == body["n"], ends

    async def _leave_stream(self) -> None:
        body = self._body(stream=True, max_tokens=500)
        events = self._chance.randint(0, 12)
        async with self._http.stream("POST", "/v1/completions", json=body) as response:
            async for _ in response.aiter_lines():
                events -= 1
                if events < 0:
                    break

    async def _leave(self) -> None:
        asking = asyncio.create_task(self._http.post("/v1/completions", json=self._body(max_tokens=500)))
        await asyncio.sleep(self._chance.random() * 0.2)
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asking

    async def _bad(self) -> None:
        route, content = self._chance.choice(_BAD)
        answer = await self._http.post(route, content=content, headers={"Content-Type": "application/json"})
        assert 400 <= answer.status_code < 500, (route, content[:60], answer.status_code)
        assert answer.json()["error"]["message"]

    async def _form(self) -> None:
        body = self._body(temperature=1, max_tokens=80, structured_outputs={"json": _FORM}, ignore_eos=False)
        answer = await self._http.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        choice = answer.json()["choices"][0]
        if choice["finish_reason"] == "stop":
            assert set(json.loads(choice["text"])) == {"a", "b"}

    async def _long(self) -> None:
        # Half of them begin alike.
        start = "x" * 300 if self._chance.random() < 0.5 else ""
        await self._post(self._body(prompt=start + self._text(600), max_tokens=8, n=2))

    async def _look(self) -> None:
        assert (await self._http.get("/health")).status_code == 200
        await self.metrics()


def family(pid: int) -> list[int]:
    """Return the process and all that descend from it."""
    parents: dict[int, int] = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            parents[int(entry)] = int(Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1])
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def held_by(pids: list[int]) -> dict[str, float]:
    """Return what processes hold together: memory, descriptors, threads."""
    held = collections.Counter[str](memory_mb=0, threads=0, descriptors=0)
    for pid in pids:
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        if "VmRSS" not in status:
            continue  # It has ended and waits for its parent.
        held["memory_mb"] += int(status["VmRSS"].split()[0]) // 1024
        held["threads"] += int(status["Threads"])
        held["descriptors"] += len(os.listdir(f"/proc/{pid}/fd"))
    return dict(held)


def judged(notes: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Return of what is held the first, last and largest values after the warm-up, and the growth of a line through them."""
    steady = notes[len(notes) // 3 :]
    found: dict[str, dict[str, float]] = {}
    for name in _SLACK:
        values = [note[name] for note in steady]
        slope = float(np.polyfit(range(len(values)), values, 1)[0]) if len(values) > 1 else 0.0
        found[name] = {
            "first": values[0],
            "last": values[-1],
            "most": max(values),
            "growth": round(slope * (len(values) - 1), 2),
        }
    return found


async def soak(url: str, pid: int, minutes: float, num_clients: int, seed: int) -> dict[str, Any]:
    """Let clients ask for so long; return what came of it."""
    traffic = Traffic(url, num_clients, seed)
    began, notes, series = time.monotonic(), list[dict[str, float]](), list[list[float]]()
    while time.monotonic() - began < minutes * 60:
        traffic.open.set()
        await asyncio.sleep(min(_PAUSE_EVERY, minutes * 60 / 6))
        await traffic.pause()
        until = time.monotonic() + _IDLE_SECONDS
        while busy := _busy(await traffic.metrics()):
            if time.monotonic() > until:
                traffic.wrong.append(f"an idle server holds {busy}")
                break
            await asyncio.sleep(0.1)
        pids = family(pid)
        notes.append(held_by(pids))
        series.append([held_by([one])["memory_mb"] for one in pids])
    counters = await traffic.metrics()
    await traffic.close()
    totals = {name: int(sum(v for key, v in counters.items() if f":{name}_total" in key)) for name in _TOTALS}
    held = judged(notes)
    grown = [name for name, one in held.items() if one["growth"] > _SLACK[name]]
    return {
        "minutes": round((time.monotonic() - began) / 60, 1),
        "requests": dict(sorted(traffic.counts.items())),
        "wrong": len(traffic.wrong),
        "what": traffic.wrong[:10],
        "totals": totals,
        "pauses": len(notes),
        "held": held,
        "memory_mb_by_process": series[:: max(1, len(series) // 12)],
        "grown": grown,
    }


_TOTALS = ("prompt_tokens", "generation_tokens", "num_preemptions", "prefix_cache_hits", "engine_steps")


def _busy(found: dict[str, float]) -> dict[str, float]:
    """Return the gauges of what requests hold that are not 0."""
    words = ("num_requests_running", "num_requests_waiting{", "num_slots_used", 'state="used"', 'state="pending"')
    return {name: value for name, value in found.items() if value and any(word in name for word in words)}


def main(arguments: list[str]) -> int:
    """Serve, ask, judge and print; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--model", help="a tiny one is made if not given")
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the figures there too")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        model = given.model or str(save_model(Path(folder)))
        command = [sys.executable, "-m", "octavo.cli.main", "serve", model, "--port", str(port), *_FLAGS]
        server = subprocess.Popen(command, env={**os.environ, "OCTAVO_LOG_LEVEL": "ERROR"})  # noqa: TID251
        url = f"http://127.0.0.1:{port}"
        try:
            _wait_for(url, server)
            figures = asyncio.run(soak(url, server.pid, given.minutes, given.clients, given.seed))
        finally:
            server.send_signal(signal.SIGTERM)
            status = server.wait(30)
    figures["status"] = status
    print(json.dumps(figures, indent=2))
    if given.json:
        given.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 1 if figures["grown"] or figures["wrong"] or status else 0


def _wait_for(url: str, server: subprocess.Popen[bytes]) -> None:
    """Wait until the server is well."""
    while server.poll() is None:
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(url + "/health", timeout=2).status_code == 200:
                return
        time.sleep(0.1)
    raise SystemExit(f"the server ended with status {server.returncode}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
