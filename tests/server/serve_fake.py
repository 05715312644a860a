"""A server process over the fake service: `python -m tests.server.serve_fake DELAY TIMEOUT [OPTIONS]`; prints its URL.

OPTIONS: fields of ServeConfig, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys

from octavo.config.serve import ServeConfig
from octavo.frontend.server.app import create_app
from octavo.frontend.server.serve import bind, serve_http, url_of
from tests.server.fake_service import FakeService


def main() -> int:
    service = FakeService()
    service.delay = float(sys.argv[1])
    options = json.loads(sys.argv[3]) if len(sys.argv) > 3 else {}
    config = ServeConfig(port=0, served_model_name=("tiny",), shutdown_timeout=float(sys.argv[2]), **options)
    taken = bind(config)
    print(url_of(taken), flush=True)
    return asyncio.run(serve_http(create_app(service, config, model="tiny"), service, config, taken))


if __name__ == "__main__":
    sys.exit(main())
