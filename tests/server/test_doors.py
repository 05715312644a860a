"""The ways to a server: keys, a Unix socket, HTTPS, pages of other origins, a path behind a proxy."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.routing import Route

from octavo.base.errors import ConfigError
from octavo.config.serve import ServeConfig
from octavo.frontend.server.app import create_app
from octavo.frontend.server.keys import ApiKeys
from octavo.frontend.server.serve import bind, url_of
from tests.server.fake_service import FakeService
from tests.server.harness import CHAT, client, run

ROOT = Path(__file__).resolve().parents[2]
# Of a certificate for 127.0.0.1 that nobody trusts.
KEY = """-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgvPnh+RewrZMDD1Fx
uoQXmjh7jhEVrRIQlB7y2/r0em6hRANCAARldj4JDc+jay2ZduzfAAFDOMr5UzBc
8XTdXbsmTkZjijGYBuwvuINUaBumdsY6cOX0Kcun6uGuTlGods6mFbAR
-----END PRIVATE KEY-----
"""
CERTIFICATE = """-----BEGIN CERTIFICATE-----
MIIBjzCCATagAwIBAgIUeyvdSaKKhsk18Qe8YIyrgndRmigwCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTEzMDEyMjU0N1oYDzIxMjYxMTA2
MTIyNTQ3WjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAARldj4JDc+jay2ZduzfAAFDOMr5UzBc8XTdXbsmTkZjijGYBuwvuINU
aBumdsY6cOX0Kcun6uGuTlGods6mFbARo2QwYjAdBgNVHQ4EFgQUd9Z2U5sV7ldY
4nm4W2Gz/qso39cwHwYDVR0jBBgwFoAUd9Z2U5sV7ldY4nm4W2Gz/qso39cwDwYD
VR0TAQH/BAUwAwEB/zAPBgNVHREECDAGhwR/AAABMAoGCCqGSM49BAMCA0cAMEQC
IBIgi0w1Oo14raVLsIf3IRGzA6IHdx6hlp21k9Gp5gerAiApjgh35atFqac0dpxk
58ys/phJ/8IGLookeDksUC3gRw==
-----END CERTIFICATE-----
"""


def _ask(service: FakeService, config: ServeConfig, *requests: tuple[str, str, dict[str, str]]) -> list[httpx.Response]:
    async def ask() -> list[httpx.Response]:
        async with client(service, config) as http:
            return [await http.request(method, path, headers=headers, json=CHAT) for method, path, headers in requests]

    return run(ask())


MESSAGES = ("/v1/messages", "/v1/messages/count_tokens")
ROUTES = [
    ("POST", "/v1/chat/completions"), ("POST", "/v1/completions"), ("GET", "/v1/models"), ("GET", "/v1/models/tiny"),
    ("GET", "/metrics"), ("GET", "/version"), ("GET", "/nowhere"),
    ("POST", "/tokenize"), ("POST", "/detokenize"), ("GET", "/load"), *(("POST", path) for path in MESSAGES),
    ("POST", "/v1/responses"), ("GET", "/v1/responses/x"), ("DELETE", "/v1/responses/x"), ("POST", "/v1/responses/x/cancel"),
]  # fmt: skip


# What the body of a chat is for others.
STATUS = {
    "/nowhere": 404,
    "/v1/responses/x": 404,
    "/v1/responses/x/cancel": 404,
    "/v1/responses": 400,
    "/v1/completions": 400,
    "/detokenize": 400,
}


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_without_a_key_only_health_is_open(service: FakeService, method: str, path: str) -> None:
    config = ServeConfig(api_key=("first", "second"), served_model_name=("tiny",))
    wrong: list[dict[str, str]] = [{}, {"Authorization": "Bearer third"}, {"Authorization": "Basic first"},
             {"Authorization": "first"}, {"Authorization": "Bearer "}, {"X-Api-Key": "third"}]  # fmt: skip
    *refused, health = _ask(service, config, *((method, path, headers) for headers in wrong), ("GET", "/health", {}))
    assert {answer.status_code for answer in refused} == {401}
    assert refused[0].headers["WWW-Authenticate"] == "Bearer"
    kind = refused[0].json()["error"]["code" if path not in MESSAGES else "type"]
    assert kind == ("invalid_api_key" if path not in MESSAGES else "authentication_error")
    assert health.status_code == 200
    assert (service.requests, service.num_resets) == ([], 0)
    for key in ("first", "second"):
        sent = ({"Authorization": f"bearer {key}"}, {"X-Api-Key": key})
        answers = _ask(service, config, *((method, path, headers) for headers in sent))
        assert [answer.status_code for answer in answers] == [STATUS.get(path, 200)] * 2


def test_no_route_is_forgotten(service: FakeService) -> None:
    config = ServeConfig(api_key=("first",))
    routes = [route for route in create_app(service, config, model="m").routes if isinstance(route, Route)]
    asked = [(method, route.path, {}) for route in routes for method in sorted(route.methods or ()) if method != "HEAD"]
    open_ones = {
        path for (_, path, _), got in zip(asked, _ask(service, config, *asked), strict=True) if got.status_code != 401
    }
    assert len(asked) > 10
    assert open_ones == {
        "/",
        "/docs",
        "/openapi.json",
        "/health",
        "/live",
        "/ready",
        "/ping",
        "/reset_prefix_cache",
        "/stats",
    }
    assert service.num_resets == 0


OPERATOR = [("POST", "/reset_prefix_cache"), ("GET", "/stats")]


@pytest.mark.parametrize(("method", "path"), OPERATOR)
@pytest.mark.parametrize(
    ("keys", "statuses"),
    [
        # What is asked with: nothing, a key, an operator's key.
        ({}, (200, 200, 200)),
        ({"api_key": ("user",)}, (403, 403, 403)),
        ({"admin_api_key": ("boss",)}, (401, 401, 200)),
        ({"api_key": ("user",), "admin_api_key": ("boss",)}, (401, 401, 200)),
    ],
)
def test_the_operators_routes_have_keys_of_their_own(
    service: FakeService, method: str, path: str, keys: dict[str, Any], statuses: tuple[int, ...]
) -> None:
    sent: list[dict[str, str]] = [{}, {"Authorization": "Bearer user"}, {"X-Api-Key": "boss"}]
    answers = _ask(service, ServeConfig(**keys), *((method, path, headers) for headers in sent))
    assert tuple(answer.status_code for answer in answers) == statuses
    assert service.num_resets == (statuses.count(200) if path == "/reset_prefix_cache" else 0)
    if 403 in statuses:
        assert "--admin-api-key" in answers[0].json()["error"]["message"]


@pytest.mark.parametrize(("method", "path"), OPERATOR)
@pytest.mark.parametrize("keys", [{"api_key": ("user",)}, {"admin_api_key": ("boss",)}])
def test_a_line_end_behind_an_operators_route_opens_nothing(
    service: FakeService, method: str, path: str, keys: dict[str, Any]
) -> None:
    (answer,) = _ask(service, ServeConfig(**keys), (method, f"{path}%0A", {"Authorization": "Bearer user"}))
    assert answer.status_code in (401, 403)
    assert service.num_resets == 0


def test_the_operators_key_opens_all_and_its_absence_nothing_more(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ServeConfig(api_key=("user",))
    monkeypatch.setenv("OCTAVO_ADMIN_API_KEY", "boss")
    models = [("GET", "/v1/models", {"X-Api-Key": key}) for key in ("user", "boss", "other")]
    assert [answer.status_code for answer in _ask(service, config, *models)] == [200, 200, 401]
    # A server with only an operator's key is open to all else.
    assert [answer.status_code for answer in _ask(service, ServeConfig(), *models)] == [200, 200, 200]


def test_paths_mean_the_same_behind_a_proxy(service: FakeService) -> None:
    async def ask(*requests: tuple[str, str]) -> list[tuple[int, Any]]:
        app = create_app(service, ServeConfig(api_key=("k",)), model="m")
        transport = httpx.ASGITransport(app, root_path="/llm")
        async with httpx.AsyncClient(transport=transport, base_url="http://server/llm") as http:
            answers = [await http.request(method, path, json={}) for method, path in requests]
        return [(answer.status_code, answer.text) for answer in answers]

    health, page, reset, messages = run(
        ask(("GET", "/health"), ("GET", "/"), ("POST", "/reset_prefix_cache"), ("POST", "/v1/messages"))
    )
    assert (health[0], page[0], reset[0]) == (200, 200, 403)
    # In the shape of its protocol.
    assert (messages[0], json.loads(messages[1])["type"]) == (401, "error")


def test_sockets_are_closed_without_a_key() -> None:
    sent: list[Any] = []

    async def app(_scope: Any, _receive: Any, _send: Any) -> None:
        sent.append("passed on")

    async def send(message: Any) -> None:
        sent.append(message)

    async def ask(**scope: Any) -> None:
        await ApiKeys(app, ["first"])({"headers": [], **scope}, send, send)

    run(ask(type="websocket", path="/v1/realtime"))
    run(ask(type="websocket", path="/v1/realtime", headers=[(b"authorization", b"Bearer first")]))
    run(ask(type="lifespan"))
    assert sent == [{"type": "websocket.close", "code": 1008}, "passed on", "passed on"]


def test_the_key_of_the_environment(service: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_API_KEY", "third")
    config = ServeConfig(api_key=("first",))
    keys = ("first", "third", "second")
    asked = [("GET", "/v1/models", {"Authorization": f"Bearer {key}"}) for key in keys]
    assert [answer.status_code for answer in _ask(service, config, *asked)] == [200, 200, 401]


def test_pages_of_other_origins(service: FakeService) -> None:
    origin = {"Origin": "https://a.example"}
    preflight = {**origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    config = ServeConfig(api_key=("k",), allowed_origins=("https://a.example",), allowed_methods=("POST",))
    asked, posted, other = _ask(
        service,
        config,
        ("OPTIONS", "/v1/chat/completions", preflight),
        ("POST", "/v1/chat/completions", {**origin, "Authorization": "Bearer k"}),
        ("OPTIONS", "/v1/chat/completions", {**preflight, "Origin": "https://b.example"}),
    )
    assert (asked.status_code, asked.headers["access-control-allow-origin"]) == (200, "https://a.example")
    assert asked.headers["access-control-allow-methods"] == "POST"
    assert posted.headers["access-control-allow-origin"] == "https://a.example"
    assert other.status_code == 400
    (closed,) = _ask(service, ServeConfig(), ("POST", "/v1/chat/completions", origin))
    assert "access-control-allow-origin" not in closed.headers


@contextlib.contextmanager
def _process(delay: float = 0, **options: Any) -> Generator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", "tests.server.serve_fake", str(delay), "5", json.dumps(options)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def _until_up(http: httpx.Client, url: str, tries: int = 500) -> httpx.Response:
    for _ in range(tries):
        with contextlib.suppress(httpx.TransportError):
            return http.get(url)
        time.sleep(0.01)
    raise AssertionError("the server did not come up")


def test_a_unix_socket_is_served_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "octavo.sock"
    # What a dead server left is replaced.
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))
    left.close()
    with _process(uds=str(path)) as (process, url):
        assert url == f"http+unix://{path}"
        # httpx forgets to close a Unix socket that nobody listens to yet.
        for _ in range(1000):
            with socket.socket(socket.AF_UNIX) as knocking:
                if knocking.connect_ex(str(path)) == 0:
                    break
            time.sleep(0.01)
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path))) as http:
            assert _until_up(http, "http://server/v1/models").json()["data"][0]["id"] == "tiny"
        with pytest.raises(ConfigError, match="cannot listen on") as caught:
            bind(ServeConfig(uds=str(path)))
        assert caught.value.field == "uds"
        process.send_signal(signal.SIGTERM)
        assert process.wait(5) == 0
    assert not path.exists()
    with pytest.raises(ConfigError, match="cannot listen on"):
        bind(ServeConfig(uds=str(tmp_path / "no" / "folder")))


def test_https(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    key.write_text(KEY)
    certificate.write_text(CERTIFICATE)
    with _process(ssl_keyfile=str(key), ssl_certfile=str(certificate), root_path="/proxied") as (_, url):
        address = url.replace("http:", "https:")
        with httpx.Client(verify=False) as http:
            assert _until_up(http, address + "/health").status_code == 200
            assert http.get(address + "/v1/models").status_code == 200
        host, port = address.removeprefix("https://").split(":")
        shown = ssl.get_server_certificate((host, int(port)))
        assert ssl.PEM_cert_to_DER_cert(shown) == ssl.PEM_cert_to_DER_cert(CERTIFICATE)
    taken = bind(ServeConfig(port=0))
    assert url_of(taken, "https").startswith("https://127.0.0.1:")
    taken.close()


def test_https_that_cannot_be_served_is_an_error_before_the_model_loads(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    key.write_text(KEY)
    certificate.write_text(CERTIFICATE)
    for options in (
        {"ssl_keyfile": str(certificate)},
        {"ssl_certfile": str(tmp_path / "none.pem")},
        {"ssl_certfile": str(certificate)},
        {"ssl_certfile": str(certificate), "ssl_keyfile": str(certificate)},
        {"ssl_certfile": str(certificate), "ssl_keyfile": str(key), "ssl_ciphers": "none such"},
        {"ssl_certfile": str(certificate), "ssl_keyfile": str(key), "ssl_ca_certs": str(tmp_path / "none.pem")},
    ):
        with pytest.raises(ConfigError) as caught:
            bind(ServeConfig(port=0, **options))
        assert caught.value.field == "ssl_certfile"


def test_certificates_of_clients(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    key.write_text(KEY)
    certificate.write_text(CERTIFICATE)
    files = {"ssl_keyfile": str(key), "ssl_certfile": str(certificate), "ssl_ca_certs": str(certificate)}
    with _process(**files, ssl_cert_reqs=2) as (_, url):
        address = url.replace("http:", "https:")
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        anonymous = httpx.Client(verify=context)
        with pytest.raises(AssertionError, match="did not come up"):
            _until_up(anonymous, address + "/health", tries=20)
        anonymous.close()


def _exchange(url: str, *pieces: bytes) -> bytes:
    """Send pieces, and return what came until the server closed the connection."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        for piece in pieces:
            connection.sendall(piece)
        found = b""
        while data := connection.recv(4096):
            found += data
        return found


def test_requests_that_do_not_come_whole_are_not_waited_for() -> None:
    with _process(read_timeout=0.3, timeout_keep_alive=1) as (_, url), httpx.Client() as http:
        assert _until_up(http, url + "/health").status_code == 200
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 40\r\n\r\n"
        for pieces in ((), (b"GET /health HT",), (head,), (head, b'{"prompt": "')):
            assert _exchange(url, *pieces).startswith(b"HTTP/1.1 408 ")
        # Of a connection that is kept, the second request too; and one that only waits is closed without a word.
        whole = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
        answers = _exchange(url, whole, b"GET /hea")
        assert answers.startswith(b"HTTP/1.1 200 ")
        assert b"HTTP/1.1 408 " in answers
        assert b"HTTP/1.1 408 " not in _exchange(url, whole)


def test_an_answer_may_take_longer_than_its_request() -> None:
    with _process(delay=0.15, read_timeout=0.3) as (_, url), httpx.Client() as http:
        assert _until_up(http, url + "/health").status_code == 200
        answer = http.post(url + "/v1/chat/completions", json=CHAT)
        assert answer.json()["usage"]["completion_tokens"] == 4


@pytest.mark.parametrize("stream", [True, False])
def test_who_asks_on_before_the_answer_is_there_does_not_spoil_it(stream: bool) -> None:
    with _process(delay=0.2, read_timeout=0.3) as (_, url), httpx.Client() as http:
        assert _until_up(http, url + "/health").status_code == 200
        body = json.dumps({**CHAT, "stream": stream}).encode()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
        for late in (b"GET /hea", head % 40, head % 40 + b'{"mod'):
            answer, left = _exchange(url, head % len(body) + body + late).split(b"HTTP/1.1 408 ")
            assert answer.startswith(b"HTTP/1.1 200 ")
            assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n" if stream else b"}")
            assert left.endswith(b"\r\n\r\n")


def test_a_client_that_never_reads_is_cut_off() -> None:
    with _process(write_timeout=0.5) as (_, url), httpx.Client() as http, socket.socket() as connection:
        assert _until_up(http, url + "/health").status_code == 200
        # More than all buffers on the way can hold.
        body = json.dumps({**CHAT, "n": 128, "max_tokens": 50, "logprobs": True, "top_logprobs": 20, "stream": True})
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", int(url.rsplit(":", 1)[1])))
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall((head + body).encode())
        loads = [1]
        end = time.monotonic() + 10
        while loads[-1] and time.monotonic() < end:
            time.sleep(0.05)
            loads.append(http.get(url + "/load").json()["server_load"])
        assert loads[:4] == [1] * 4
        assert loads[-1] == 0


def test_headers_have_a_limit() -> None:
    with _process(h11_max_incomplete_event_size=2048) as (_, url), httpx.Client() as http:
        assert _until_up(http, url + "/health").status_code == 200
        # What comes in one piece is read before it is counted.
        assert http.get(url + "/health", headers={"X-Long": "x" * 500_000}).status_code == 400
