"""`octavo batch IN OUT` over the fake engine: `python -m tests.host.cli.serve_batch IN OUT STEP_SECONDS`.

Prints the resident memory in KiB once a quarter of the lines is done, and at the end.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx

from octavo.cli.batch import Batch
from octavo.cli.batch_files import BatchOutput, count_lines, read_lines
from octavo.config.serve import ServeConfig
from octavo.frontend.server.app import create_app
from tests.engine_process.starting import running_service


def resident_kib() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


async def run(source: Path, target: Path, step_seconds: float) -> None:
    output = BatchOutput(target)
    total = count_lines(source)
    quarter = output.num_done + (total - output.num_done) // 4

    def lines() -> Iterator[tuple[int, bytes | None]]:
        for number, line in read_lines(source, 2**20):
            if not output.has(number, line):
                if number == quarter:
                    print(resident_kib(), flush=True)
                yield number, line

    batch = Batch(output, total)
    async with running_service(step_seconds=step_seconds, max_running=64) as (service, _):
        app = create_app(service, ServeConfig(), model="bytes")
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://batch", timeout=None) as http:
            await batch.answer(lines(), http, 128)
    output.close()
    print(resident_kib(), flush=True)
    print(batch.summary(), file=sys.stderr)


if __name__ == "__main__":
    asyncio.run(run(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])))
