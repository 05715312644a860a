"""The tiny models of a session: made when first asked for."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest

from tests.equivalence.models import TinyModel


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], TinyModel]:
    folder = tmp_path_factory.mktemp("tiny")
    return functools.cache(lambda name: TinyModel(name, folder))
