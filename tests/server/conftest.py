"""A fresh fake service and a server configuration for every test."""

from __future__ import annotations

import pytest

from octavo.config.serve import ServeConfig
from tests.server.fake_service import FakeService


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
def config() -> ServeConfig:
    return ServeConfig(served_model_name=("tiny", "small"), max_body_bytes=20_000, max_logprobs=5)
