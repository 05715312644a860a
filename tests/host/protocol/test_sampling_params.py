"""SamplingParams: what each field may be, what it may be written as, and that no field of vLLM's is silent."""

from __future__ import annotations

import dataclasses
import re
import runpy
from pathlib import Path

import pytest

from octavo import SamplingParams
from octavo.base.errors import InvalidRequestError, UnsupportedError
from octavo.protocol.codec import Codec
from octavo.protocol.sampling import REFUSED, RequestOutputKind

# The inventory's list of vLLM 0.32 (section 1.3).
INVENTORY = """
n max_tokens min_tokens seed temperature top_p top_k min_p presence_penalty frequency_penalty repetition_penalty logit_bias
allowed_token_ids bad_words watermarking stop stop_token_ids ignore_eos include_stop_str_in_output repetition_detection
thinking_token_budget logprobs prompt_logprobs logprob_token_ids prompt_logprob_token_ids prompt_logprob_start flat_logprobs
detokenize skip_special_tokens spaces_between_special_tokens output_kind stream_interval structured_outputs extra_args
skip_reading_prefix_cache routed_experts_prompt_start trace_decode_token_ids
"""
ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("n", 0, "between 1 and 16384, not 0"),
        ("n", 1.0, "whole number, not 1.0"),
        ("n", True, "whole number, not True"),
        ("temperature", -0.1, "between 0 and 100"),
        ("temperature", float("nan"), "between 0 and 100, not nan"),
        ("top_p", 0.0, "in (0, 1]"),
        ("top_k", -2, "between -1 and 2147483647"),
        ("min_p", 1.5, "between 0 and 1"),
        ("presence_penalty", 2.1, "between -2 and 2, not 2.1"),
        ("frequency_penalty", -2.5, "between -2 and 2, not -2.5"),
        ("frequency_penalty", None, "a number, not None"),
        ("repetition_penalty", 0.0, "between 0.01 and 100"),
        ("repetition_penalty", float("inf"), "between 0.01 and 100"),
        ("logit_bias", [3], "map token ids"),
        ("logit_bias", {-1: 1.0}, "map token ids >= 0"),
        ("logit_bias", {"a": 1.0}, "map token ids"),
        ("logit_bias", {1: 100.5}, "between -100 and 100, not 100.5"),
        ("logit_bias", {1: "much"}, "a number, not 'much'"),
        ("logit_bias", dict.fromkeys(range(4097), 1.0), "at most 4096 ids, not 4097"),
        ("allowed_token_ids", [], "at least one id"),
        ("allowed_token_ids", [1, -1], "token ids >= 0"),
        ("allowed_token_ids", 5, "token ids >= 0"),
        ("bad_words", [""], "non-empty string"),
        ("bad_words", ["x"] * 257, "at most 256 strings, not 257"),
        ("seed", 2**63, "between"),
        ("max_tokens", 0, "between 1 and"),
        ("min_tokens", 17, "must not exceed max_tokens (16)"),
        ("min_tokens", -1, "between 0 and"),
        ("stop", [1], "non-empty string"),
        ("stop", ["x"] * 65, "at most 64 strings"),
        ("stop_token_ids", [2.0], "token ids >= 0"),
        ("stop_token_ids", list(range(513)), "at most 512 ids"),
        ("logprobs", -2, "between -1 and"),
        ("output_kind", "all", "one of cumulative, delta, final, not 'all'"),
        ("stream_interval", 0, "between 1 and"),
        ("truncate_prompt_tokens", 0, "at least 1, or -1"),
        ("truncate_prompt_tokens", -2, "between -1 and"),
        ("logits_processors", [3], "list of functions"),
        ("logits_processors", [print] * 17, "at most 16 functions"),
        ("extra_args", [1], "dictionary"),
        ("logprob_token_ids", [-1], "token ids >= 0"),
        ("logprob_token_ids", [*range(129)], "at most 128 ids"),
        ("trace_decode_token_ids", "ab", "token ids >= 0"),
        ("repetition_detection", {"max_size": 3}, "max_size"),
        *((name, 1, "true or false, not 1") for name in ("ignore_eos", "include_stop_str_in_output", "detokenize")),
        *((name, "no", "true or false") for name in ("skip_special_tokens", "spaces_between_special_tokens")),
        *((name, None, "true or false") for name in ("flat_logprobs", "skip_reading_prefix_cache")),
    ],
)
def test_what_is_out_of_range_names_field_and_range(field, value, says):
    with pytest.raises(InvalidRequestError, match=re.escape(says)) as caught:
        SamplingParams(**{field: value})
    assert caught.value.field == field
    assert field in str(caught.value)


def test_spellings_that_users_know():
    params = SamplingParams(stop="a", stop_token_ids=None, bad_words=None, logit_bias={"7": 1, 8: -2.5}, seed=-1)
    assert (params.stop, params.stop_token_ids, params.bad_words, params.seed) == (("a",), (), (), None)
    assert params.logit_bias == {7: 1, 8: -2.5}
    assert SamplingParams(bad_words=["x"], allowed_token_ids=[3, 1]).allowed_token_ids == (3, 1)
    assert SamplingParams(output_kind=RequestOutputKind.FINAL_ONLY).output_kind == "final"
    assert SamplingParams(output_kind="delta").output_kind is RequestOutputKind.DELTA


@pytest.mark.parametrize(
    ("value", "field", "says"),
    [
        ({"max_pattern_size": 0, "min_count": 2}, "max_pattern_size", "between 1 and 1024, not 0"),
        ({"max_pattern_size": 3, "min_count": 1}, "min_count", "between 2 and 1024, not 1"),
        ({"max_pattern_size": 3, "min_count": 2, "min_pattern_size": 4}, "min_pattern_size", "must not exceed"),
    ],
)
def test_patterns_have_ranges_too(value, field, says):
    with pytest.raises(InvalidRequestError, match=says) as caught:
        SamplingParams(repetition_detection=value)
    assert caught.value.field == f"repetition_detection.{field}"


def test_stop_strings_need_text():
    with pytest.raises(InvalidRequestError, match="need detokenize=True"):
        SamplingParams(stop="a", detokenize=False)


def test_parameters_cross_processes_unchanged():
    given = SamplingParams(
        temperature=0.5,
        logit_bias={3: 1.5},
        allowed_token_ids=[1, 2],
        bad_words=["a b"],
        output_kind="delta",
        extra_args={"factor": 2, "names": ["x"]},
        presence_penalty=-1,
        truncate_prompt_tokens=-1,
        repetition_detection={"max_pattern_size": 3, "min_count": 4},
        trace_decode_token_ids=[3],
    )
    codec = Codec[SamplingParams](SamplingParams)
    assert codec.decode(codec.encode(given)) == given


def test_no_field_is_silent():
    own = {declared.name for declared in dataclasses.fields(SamplingParams)}
    table = runpy.run_path(str(ROOT / "tools" / "sampling_fields.py"))["SAMPLING_FIELDS"]
    assert set(INVENTORY.split()) - set(table) == set()
    assert own == set(table) - set(REFUSED)
    for name, row in table.items():
        if row.status == "supported":
            file, _, test = row.text.partition("::")
            assert f"def {test}(" in (ROOT / file).read_text(), f"{name}: {row.text}"
        else:
            assert len(row.text) > 20, name


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_refused_fields_say_why(name):
    with pytest.raises(UnsupportedError, match=re.escape(REFUSED[name])) as caught:
        SamplingParams(**{name: 1})
    assert caught.value.field == name
    assert SamplingParams(**{name: None}) == SamplingParams()


def test_unknown_names_are_told_the_nearest():
    with pytest.raises(TypeError, match="did you mean 'presence_penalty'"):
        SamplingParams(presense_penalty=1.0)
