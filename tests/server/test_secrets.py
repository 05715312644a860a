"""A server's log in JSON: every line an object, and no key, text or query in any."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import httpx

from tests.server.harness import CHAT
from tests.server.test_shutdown import ROOT

SECRETS = ("swordfish", "admiral", "shark", "hush", "whisper", "Oktav")


def test_no_secret_is_in_any_line_of_the_log() -> None:
    options = {"enable_access_log": True, "enable_log_requests": True}
    command = [sys.executable, "-m", "tests.server.serve_fake", "0", "5", json.dumps(options)]
    variables = {"OCTAVO_API_KEY": "swordfish", "OCTAVO_ADMIN_API_KEY": "admiral"}
    variables |= {"OCTAVO_LOG_FORMAT": "json", "OCTAVO_LOG_LEVEL": "DEBUG"}
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, **variables},  # noqa: TID251
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        transport = httpx.HTTPTransport(retries=8)
        with httpx.Client(base_url=url, transport=transport) as http:
            for key in ("swordfish", "admiral", "shark"):
                headers = {"Authorization": f"Bearer {key}"}
                body = CHAT | {"messages": [{"role": "user", "content": "whisper"}]}
                for stream in (False, True):
                    http.post("/v1/chat/completions?token=hush", json=body | {"stream": stream}, headers=headers)
                http.post("/v1/chat/completions", json=body | {"temperature": "shark"}, headers=headers)
                http.get("/stats", headers=headers)
        process.terminate()
        _, written = process.communicate(timeout=10)
    rows = [json.loads(line) for line in written.splitlines()]
    calls = [(row["path"], row["status"]) for row in rows if "path" in row]
    assert calls.count(("/v1/chat/completions", 200)) == 4
    assert calls.count(("/v1/chat/completions", 401)) == 3
    assert calls.count(("/stats", 200)) == 1
    assert [word for word in SECRETS if word in written] == []
