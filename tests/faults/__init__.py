"""Faults put into real servers."""

import pytest

pytest.register_assert_rewrite("tests.faults.serving")
