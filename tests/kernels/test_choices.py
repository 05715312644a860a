"""Kernels and attention backends are chosen from facts: golden tables, refusals with reasons, forced choices."""

from __future__ import annotations

from dataclasses import fields

import pytest

from octavo.base.errors import ConfigError
from octavo.base.facts import DeviceFacts
from octavo.nn.attention.select import BACKENDS, AttentionNeeds, Capabilities, select
from octavo.ops.candidate import Candidate, Op, choose
from octavo.ops.registry import Kernels, bind, ops
from tests.fake_device import fake_device

CPU = fake_device(kind="cpu", arch="avx512", features=frozenset({"avx512f"})).facts
H200 = fake_device(kind="cuda", arch="sm_90").facts
OP = Op(
    name="op",
    candidates=(
        Candidate(name="cuda", path="no.such:thing", kinds=("cuda",), archs=("sm_90", "sm_100"), dtypes=("bfloat16",)),
        Candidate(name="vnni", path="no.such:thing", kinds=("cpu",), features=("avx512_vnni",)),
        Candidate(
            name="many",
            path="no.such:thing",
            check=lambda facts, _: None if facts.num_cores > 8 else f"needs more than 8 cores, not {facts.num_cores}",
        ),
        Candidate(name="torch", path="no.such:thing"),
    ),
)
FLASH = Capabilities(
    name="flash",
    path="no.such:thing",
    kinds=("cuda",),
    archs=("sm_90",),
    dtypes=("bfloat16",),
    head_dims=(64, 128),
    features=frozenset({"window"}),
)


@pytest.mark.parametrize(
    ("facts", "dtype", "name", "reason"),
    [
        (H200, "bfloat16", "cuda", "op cuda: the first that fits"),
        (
            H200,
            "float32",
            "torch",
            "op torch: cuda needs bfloat16, not float32; vnni needs a device of cpu, not cuda; "
            "many needs more than 8 cores, not 4",
        ),
        (fake_device(kind="cpu", features=frozenset({"avx512_vnni"})).facts, "float32", "vnni", None),
        (fake_device(kind="cuda", arch="sm_80", num_cores=9).facts, "bfloat16", "many", None),
    ],
)
def test_the_first_candidate_that_fits(facts: DeviceFacts, dtype: str, name: str, reason: str | None) -> None:
    candidate, why = choose(OP, facts, dtype)
    assert candidate.name == name
    assert reason in (None, why)


def test_forced_candidates() -> None:
    assert choose(OP, H200, "bfloat16", "torch")[0].name == "torch"
    with pytest.raises(ConfigError, match="kernel 'vnni' for op was asked for but needs avx512_vnni") as caught:
        choose(OP, CPU, "float32", "vnni")
    assert caught.value.field == "op"
    with pytest.raises(ConfigError, match="unknown kernel for op 'trch'; did you mean 'torch'"):
        choose(OP, CPU, "float32", "trch")


def test_every_op_has_a_kernel_and_a_reference_that_fits_everywhere() -> None:
    assert [*ops(), "decisions", "unrecordable"] == [field.name for field in fields(Kernels)]
    nowhere = fake_device(kind="toaster", arch="none", features=frozenset()).facts
    for op in ops().values():
        assert op.candidates[-1].name == "torch"
        assert op.candidates[-1].refusal(nowhere, "float32") is None
    assert len(bind(nowhere, "bfloat16").decisions) == len(ops())


@pytest.mark.parametrize(
    ("needs", "facts", "name"),
    [
        (AttentionNeeds(dtype="bfloat16", head_dim=128), H200, "flash"),
        (AttentionNeeds(dtype="bfloat16", head_dim=128, window=64), H200, "flash"),
        (AttentionNeeds(dtype="bfloat16", head_dim=128, softcap=30.0), H200, "torch"),
        (AttentionNeeds(dtype="float32", head_dim=128), H200, "torch"),
        (AttentionNeeds(dtype="bfloat16", head_dim=80), H200, "torch"),
        (AttentionNeeds(dtype="bfloat16", head_dim=64), fake_device(kind="cuda", arch="sm_80").facts, "torch"),
        (AttentionNeeds(dtype="float32", head_dim=64, window=64, softcap=30.0), CPU, "torch"),
    ],
)
def test_attention_backends(needs: AttentionNeeds, facts: DeviceFacts, name: str) -> None:
    assert select(needs, facts, backends=(FLASH, *BACKENDS)).backend.name == name


def test_reasons_and_forced_attention_backends() -> None:
    needs = AttentionNeeds(dtype="bfloat16", head_dim=128, softcap=30.0)
    backends = (FLASH, *BACKENDS)
    assert select(needs, H200, backends=backends).reason == (
        "attention of heads of 128, softcap: torch, flash has no softcap"
    )
    with pytest.raises(ConfigError, match="'flash' was asked for but has no softcap"):
        select(needs, H200, "flash", backends)
    with pytest.raises(ConfigError, match="'flash' was asked for but needs a device of cuda, not cpu"):
        select(needs, CPU, "flash", backends)
    with pytest.raises(ConfigError, match="no backend for attention of heads of 128, softcap: flash has no softcap"):
        select(needs, H200, backends=(FLASH,))
