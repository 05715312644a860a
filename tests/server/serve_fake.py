"""A server process over the fake service: `python -m tests.server.serve_fake DELAY TIMEOUT`; prints its URL."""

from __future__ import annotations

import asyncio
import sys

from octavo.config.serve import ServeConfig
from octavo.frontend.server.app import create_app
from octavo.frontend.server.serve import bind, serve_http, url_of
from tests.server.fake_service import FakeService


def main() -> int:
    service = FakeService()
    service.delay = float(sys.argv[1])
    config = ServeConfig(port=0, served_model_name=("tiny",), shutdown_timeout=float(sys.argv[2]))
    taken = bind(config)
    print(url_of(taken), flush=True)
    return asyncio.run(serve_http(create_app(service, config, model="tiny"), service, config, taken))


if __name__ == "__main__":
    sys.exit(main())
