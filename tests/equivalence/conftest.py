"""The tiny models of a session, and the process that engines are forked off: made when first asked for."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import pytest

from tests.equivalence.models import TinyModel
from tests.equivalence.nursery import nursery


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], TinyModel]:
    folder = tmp_path_factory.mktemp("tiny")
    return functools.cache(lambda name: TinyModel(name, folder))


@pytest.fixture(scope="package")
def forked_engines() -> Iterator[None]:
    with nursery():
        yield
