"""Bytes on the sockets between processes: a message of its type, or a DecodeError, and never anything else."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from octavo.protocol.arrays import int32, int64
from octavo.protocol.codec import Codec, DecodeError
from octavo.protocol.control import Ack, Call, Control
from octavo.protocol.output import EngineMessage, EngineStats, Failure, Finish, PromptScores, Ready, Start, TokenDelta
from octavo.protocol.request import Abort, FinishChoice, FrontMessage, Request
from octavo.protocol.sampling import SamplingParams
from octavo.protocol.step import Admission, Masks, StepPlan, StepResult, TokenLogprobs
from tests.fuzz.mutation import changed_bytes, fuzz

LOGPROBS = TokenLogprobs(
    wanted=np.array([True, False]),
    chosen=np.array([-0.5, 0.0], np.float32),
    ranks=int32([1, 2]),
    top_ids=int32([1, 2, 3, 4]).reshape(2, 2),
    top=np.zeros((2, 2), np.float32),
)
PARAMS = SamplingParams(n=2, stop=("a",), logit_bias={5: 1.0}, bad_words=("x",), max_tokens=9)
REQUEST = Request(
    key=2**48 + 1, tokens=int32([1, 2, 3]), sampling=PARAMS, stop_ids=(2,), max_tokens=9, seed=7, bad_tokens=((1, 2),)
)
DELTA = TokenDelta(
    keys=int64([5, 2**48]),
    choices=int32([0, 1]),
    firsts=int32([0, 9]),
    offsets=int32([0, 1, 2]),
    ids=int32([7, 8]),
    logprobs=LOGPROBS,
    scores=PromptScores(keys=int64([5]), firsts=int32([1]), offsets=int32([0, 2]), logprobs=LOGPROBS),
    starts=(Start(key=5, choice=0, num_cached=16, time=1.5),),
    finishes=(Finish(key=5, choice=0, num_tokens=1, reason="stop", stop_id=7),),
    acks=(Ack(ticket=3),),
    stats=EngineStats(num_running=2),
)
ADMISSION = Admission(
    slot=1, generation=2, key=3, choice=0, tokens=int32([1, 2]), num_prompt=2, num_computed=0, seed=1, stop_ids=(),
    sampling=PARAMS,
)  # fmt: skip
PLAN = StepPlan(
    id=4, slots=int32([1]), starts=int32([0]), counts=int32([2]), samples=np.array([True]), admissions=(ADMISSION,),
    controls=(Control(ticket=3, command=Call(method="m")),),
)  # fmt: skip
RESULT = StepResult(plan=4, offsets=int32([0, 1]), ids=int32([7]), logprobs=LOGPROBS)
MASKS = Masks(plan=4, rows=int32([0]), positions=int32([0]), bits=np.zeros((1, 19), np.uint8))
EXAMPLES: list[tuple[Any, Any]] = [
    (FrontMessage, REQUEST),
    (FrontMessage, Abort(keys=int64([1, 2]))),
    (FrontMessage, FinishChoice(key=1, choice=0, num_tokens=4)),
    (FrontMessage, Control(ticket=1, command=Call(method="m"), when="at_plan", plan=5)),
    (EngineMessage, DELTA),
    (EngineMessage, Ready(max_model_len=5, num_pages=3, page_bytes=64, decisions=("a",))),
    (EngineMessage, Failure(kind="ConfigError", message="no")),
    (StepPlan, PLAN),
    (StepResult, RESULT),
    (Masks, MASKS),
]


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_any_damage_is_a_message_or_a_decode_error(number: int) -> None:
    kind, message = EXAMPLES[number]
    codec: Codec[Any] = Codec(kind)
    data = codec.encode(message)
    assert codec.encode(codec.decode(data)) == data
    refused = 0

    @fuzz(80)
    @given(changed_bytes(data))
    def check(damaged: bytes) -> None:
        nonlocal refused
        try:
            read = codec.decode(damaged)
        except DecodeError:
            refused += 1
        else:
            codec.encode(read)

    check()
    assert refused > 20


# Shapes, kinds and bytes of an array that nobody would write.
_ARRAYS = st.tuples(
    st.sampled_from(["i4", "i8", "f4", "b1", "u1", "O", "", 5, None, ["i4"]]),
    st.one_of(
        st.lists(st.sampled_from([0, 1, 2, -1, 2**31, 2**63, 2**64 - 1, 0.5, None, "2"]), max_size=40), st.none()
    ),
    st.one_of(st.binary(max_size=16), st.text(max_size=4), st.none(), st.integers(0, 9)),
)


@fuzz(300)
@example(("i8", [2**63], b""))
@given(st.one_of(_ARRAYS, st.lists(st.integers(0, 9), max_size=4), st.integers(0, 9)))
def test_an_array_of_nonsense_is_a_decode_error(value: Any) -> None:
    codec: Codec[Any] = Codec(FrontMessage)
    data = msgspec.msgpack.encode({"type": "abort", "keys": value})
    try:
        keys = codec.decode(data).keys
    except DecodeError:
        return
    assert keys.dtype == np.int64


@pytest.mark.parametrize("opening", [b"\x91", b"\x81\xa1a"])
def test_what_is_nested_without_end_is_a_decode_error(opening: bytes) -> None:
    for kind in (FrontMessage, EngineMessage, StepPlan):
        codec: Codec[Any] = Codec(kind)
        for data in (opening * 100_000, b"\x82\xa4type\xa5abort\xa4keys" + opening * 100_000):
            with pytest.raises(DecodeError):
                codec.decode(data)
