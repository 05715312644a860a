"""JSON schemas of the public test suite, a few of each keyword, asked of a server with a random model behind it.

Each is either kept to or refused by the name of what no grammar can say; nothing else comes.
"""

from __future__ import annotations

import asyncio
import collections
import json
from pathlib import Path
from typing import Any

import jsonschema_rs

from octavo import launch
from octavo.config.engine import EngineConfig
from octavo.config.serve import ServeConfig
from tests.reported.padded import save_padded
from tests.server.harness import client

FILE = Path(__file__).parents[1] / "data" / "json_schemas.json"
SCHEMAS: list[dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))["schemas"]
OPTIONS = {"max_model_len": 128, "max_num_seqs": 16, "dtype": "float32"}
# What ends texts, lists and objects comes more often, so that most answers have an end.
ENDING = {str(ord(one)): 4.0 for one in '"]}'}


def test_every_schema_is_kept_or_refused_by_its_keyword(tmp_path: Path) -> None:
    async def ask(http: Any, one: dict[str, Any], strict: bool) -> Any:
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": one["schema"], "strict": strict}}
        body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 80, "seed": 1, "logit_bias": ENDING}
        return await http.post("/v1/chat/completions", json={**body, "response_format": form})

    async def go() -> list[Any]:
        config = EngineConfig.from_options({"model": str(save_padded(tmp_path)), **OPTIONS})
        service = await launch.start_service(config)
        try:
            async with client(service, ServeConfig()) as http:  # pyright: ignore[reportArgumentType]
                asked = [ask(http, one, strict=number % 2 == 0) for number, one in enumerate(SCHEMAS)]
                return await asyncio.gather(*asked)
        finally:
            await service.close()

    reasons = collections.Counter[str]()
    for one, answer in zip(SCHEMAS, asyncio.run(asyncio.wait_for(go(), 60)), strict=True):
        if "refused" in one:
            assert answer.status_code == 400, one
            error = answer.json()["error"]
            assert error["param"] == "response_format"
            assert one["refused"] in error["message"]
            continue
        assert answer.status_code == 200, (one, answer.text)
        choice = answer.json()["choices"][0]
        reasons[choice["finish_reason"]] += 1
        if choice["finish_reason"] == "stop":
            draft = jsonschema_rs.Draft7Validator if "draft7" in one["name"] else jsonschema_rs.Draft202012Validator
            assert draft(one["schema"]).is_valid(json.loads(choice["message"]["content"])), (one, choice)
    # The others are cut off by their length.
    assert set(reasons) <= {"stop", "length"}
    assert reasons["stop"] > 0.7 * reasons.total() > 40
