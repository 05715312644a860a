"""Ranks whose cards run none of our kernels meet all the same, and say why they sum as NCCL does."""

from __future__ import annotations

import pytest

from octavo.nn.parallel import peers


class _Store(dict[str, bytes]):
    def set(self, key: str, value: str | bytes) -> None:
        self[key] = value.encode() if isinstance(value, str) else value

    def get(self, key: str) -> bytes:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self[key]


def test_a_card_that_the_kernel_is_not_compiled_for_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: str) -> None:
        raise RuntimeError("cuModuleLoadData: no kernel image is available")

    monkeypatch.setattr(peers, "compiled", lambda _: True)
    monkeypatch.setattr(peers, "module", fail)
    store = _Store()
    assert peers.meet(store, 0, 1) == "cuModuleLoadData: no kernel image is available"
    assert "memory 0" in store, "the others would wait for it"
