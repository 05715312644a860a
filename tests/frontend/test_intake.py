"""Prompts and parameters become checked requests, or errors that name the field."""

from __future__ import annotations

import random

import numpy as np
import pytest

from octavo.base.errors import InvalidRequestError, UnsupportedError
from octavo.protocol.codec import Codec
from octavo.protocol.request import FrontMessage
from tests.frontend.bytes_model import EOS, STOP, make_intake, params


def make(prompt, sampling=None, intake=None, **fields):
    return (intake or make_intake()).request(prompt, sampling or params(), key=5, **fields)


@pytest.mark.parametrize(
    ("prompt", "ids", "text"),
    [
        ("hé", [104, 195, 169], "hé"),
        ({"prompt": "ab"}, [97, 98], "ab"),
        ([1, 2, 3], [1, 2, 3], None),
        ({"prompt_token_ids": (4, 5)}, [4, 5], None),
        ({"prompt_token_ids": [4, 5], "prompt": "shown"}, [4, 5], "shown"),
        (np.array([7, 8]), [7, 8], None),
        ([np.int64(7)], [7], None),
    ],
)
def test_every_form_of_prompt_gives_its_ids_and_text(prompt, ids, text):
    request, shown = make(prompt)
    assert request.tokens.tolist() == ids
    assert request.tokens.dtype == np.int32
    assert shown == text
    assert request.key == 5


@pytest.mark.parametrize(
    ("prompt", "field", "says"),
    [
        ("", "prompt", "empty"),
        ([], "prompt", "empty"),
        ({"prompt_token_ids": []}, "prompt", "empty"),
        ([0, 300], "prompt", "token id 300 is not in the vocabulary, 0 to 299"),
        ([-1], "prompt", "token id -1"),
        ([10**30], "prompt", "not in the vocabulary"),
        ([1, True], "prompt", "list of token ids"),
        ([1.0], "prompt", "list of token ids"),
        (["a"], "prompt", "list of token ids"),
        (None, "prompt", "list of token ids"),
        ({"prompt": 3}, "prompt", "string"),
        ({}, "prompt", "needs"),
        ({"promt": "a"}, "promt", "did you mean 'prompt'"),
        ({"prompt": "a", "cache_salt": 3}, "cache_salt", "string"),
        ([1] * 1024, "prompt", "has 1024 tokens, and may have 1023: prompt and output together may have 1024"),
    ],
)
def test_bad_prompts_name_the_field_and_the_range(prompt, field, says):
    with pytest.raises(InvalidRequestError, match=says) as caught:
        make(prompt)
    assert caught.value.field == field


@pytest.mark.parametrize("prompt", ["a \ud83d b", "ab" + "\udfff" * 5000, {"prompt": "ab\udc00"}])
def test_half_a_character_is_refused(prompt):
    with pytest.raises(InvalidRequestError, match="prompt is not valid Unicode: character 2 is half of one") as caught:
        make(prompt)
    assert caught.value.field == "prompt"


def test_half_a_character_is_refused_wherever_it_would_travel():
    for call in (
        lambda: make({"prompt": "a", "cache_salt": "\ud800"}),
        lambda: make("a", cache_salt="\ud800"),
        lambda: params(stop=["a", "\ud800"]),
    ):
        with pytest.raises(InvalidRequestError, match=r"is not valid Unicode.*U\+D800"):
            call()


@pytest.mark.parametrize(
    ("field", "given", "own"),
    [
        ("temperature", np.float32(0.5), 0.5),
        ("top_p", np.float64(0.5), 0.5),
        ("max_tokens", np.int64(5), 5),
        ("n", np.int16(2), 2),
        ("seed", np.uint32(4), 4),
        ("ignore_eos", np.bool_(True), True),
        ("stop_token_ids", np.array([4, 5]), (4, 5)),
        ("stop_token_ids", [np.int64(4), 5], (4, 5)),
    ],
)
def test_numbers_of_numpy_are_numbers(field, given, own):
    taken = getattr(params(**{field: given}), field)
    assert taken == own
    assert type(taken) is type(own)
    Codec(FrontMessage).encode(make("a", params(**{field: given}))[0])


def test_a_nan_of_numpy_is_refused_as_any():
    with pytest.raises(InvalidRequestError, match="temperature must be between"):
        params(temperature=np.float32("nan"))


class Unread(list):
    """Token ids that nobody has the time to look at."""

    def __iter__(self):
        raise AssertionError("read")


def test_a_prompt_beyond_the_context_is_refused_by_its_length_alone():
    with pytest.raises(InvalidRequestError, match="has 5000 tokens, and may have 1023"):
        make(Unread([1] * 5000))
    with pytest.raises(AssertionError, match="read"):
        make(Unread([1] * 1023))


def test_images_are_refused_as_unsupported():
    with pytest.raises(UnsupportedError, match="multi_modal_data"):
        make({"prompt": "a", "multi_modal_data": {}})


@pytest.mark.parametrize(("asked", "given"), [(10, 10), (24, 24), (25, 24), (None, 24)])
def test_max_tokens_is_an_upper_limit(asked, given):
    request, _ = make([1] * 1000, params(max_tokens=asked))
    assert request.max_tokens == given


@pytest.mark.parametrize(("keep", "kept"), [(3, 3), (20, 20), (21, 20), (None, 20)])
def test_the_end_of_a_prompt_is_kept(keep, kept):
    request, text = make("abcdefghijklmnopqrst", params(truncate_prompt_tokens=keep))
    assert bytes(request.tokens.tolist()) == b"abcdefghijklmnopqrst"[-kept:]
    assert text == "abcdefghijklmnopqrst"


def test_a_prompt_can_be_cut_to_what_fits_beside_the_output():
    request, _ = make([7] * 5000, params(max_tokens=24, truncate_prompt_tokens=-1))
    assert (len(request.tokens), request.max_tokens) == (1000, 24)


def test_bad_words_are_spelled_with_and_without_a_space():
    request, _ = make("x", params(bad_words=["ab", " c"]))
    assert request.bad_tokens == ((97, 98), (32, 97, 98), (99,), (32, 99))
    with pytest.raises(InvalidRequestError, match="need a tokenizer") as caught:
        make([1], params(bad_words=["ab"]), make_intake(tokenizer=None, template=None))
    assert caught.value.field == "bad_words"


@pytest.mark.parametrize(
    ("field", "value"), [("allowed_token_ids", [1, 300]), ("logit_bias", {300: 1.0}), ("stop_token_ids", [5, 300])]
)
def test_ids_outside_the_vocabulary_name_field_and_range(field, value):
    with pytest.raises(InvalidRequestError, match=f"{field}: 300 is not in the vocabulary, 0 to 299") as caught:
        make("x", params(**{field: value}))
    assert caught.value.field == field


def test_functions_do_not_cross_processes():
    asked = params(logits_processors=[lambda output, logits: logits])
    with pytest.raises(UnsupportedError, match="functions do not cross processes"):
        make("x", asked)
    assert make("x", asked, make_intake(takes_functions=True))[0].sampling is asked


def test_stop_ids_are_the_models_own_and_the_users():
    assert make("a")[0].stop_ids == (EOS,)
    assert make("a", params(stop_token_ids=[3, EOS]))[0].stop_ids == (EOS, 3)
    assert make("a", params(stop_token_ids=[3], ignore_eos=True))[0].stop_ids == (3,)
    with pytest.raises(InvalidRequestError, match="300 is not in the vocabulary") as caught:
        make("a", params(stop_token_ids=[300]))
    assert caught.value.field == "stop_token_ids"


def test_a_stop_string_that_is_a_special_token_stops_by_its_id():
    assert make("a", params(stop="<|stop|>"))[0].stop_ids == (EOS, STOP)
    assert make("a", params(stop="<|stop|>", skip_special_tokens=False))[0].stop_ids == (EOS,)


@pytest.mark.parametrize(("logprobs", "fits"), [(None, True), (0, True), (5, True), (6, False), (-1, False)])
def test_logprobs_have_a_limit(logprobs, fits):
    intake = make_intake(max_logprobs=5)
    if fits:
        assert make("a", params(logprobs=logprobs), intake)[0].sampling.logprobs == logprobs
        return
    with pytest.raises(InvalidRequestError, match="at most 5") as caught:
        make("a", params(logprobs=logprobs), intake)
    assert caught.value.field == "logprobs"


def test_logprobs_of_the_whole_vocabulary_need_no_limit_set():
    assert make("a", params(logprobs=-1))[0].sampling.logprobs == -1
    with pytest.raises(InvalidRequestError, match="at most 300"):
        make("a", params(logprobs=301))


def test_seeds_are_given_or_drawn_apart_from_global_generators():
    random.seed(1)
    np.random.seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist()
    drawn = {make("a")[0].seed for _ in range(20)}
    assert len(drawn) == 20
    assert all(0 <= seed < 2**63 for seed in drawn)
    assert make("a", params(seed=-4))[0].seed == -4
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


def test_priority_and_salt_are_carried():
    request, _ = make("a", priority=-3, cache_salt="x")
    assert (request.priority, request.cache_salt) == (-3, "x")
    assert make({"prompt": "a", "cache_salt": "y"})[0].cache_salt == "y"
    assert make("a", priority=np.int64(7))[0].priority == 7
    with pytest.raises(InvalidRequestError) as caught:
        make("a", priority="high")
    assert caught.value.field == "priority"


def test_without_a_tokenizer_only_ids_are_taken():
    intake = make_intake(tokenizer=None, template=None)
    assert make([1, 2], intake=intake)[0].tokens.tolist() == [1, 2]
    for work in (
        lambda: make("a", intake=intake),
        lambda: make([1], params(stop="x"), intake),
        lambda: intake.chat([{"role": "user", "content": "a"}]),
    ):
        with pytest.raises(InvalidRequestError, match="tokenizer"):
            work()


def test_chats_are_rendered_without_adding_special_tokens():
    intake = make_intake()
    chat = [{"role": "user", "content": "hi"}]
    assert bytes(intake.chat(chat)) == b"[user]hi>"
    assert bytes(intake.chat(chat, add_generation_prompt=False)) == b"[user]hi"
    assert bytes(intake.chat(chat, chat_template="{{ x }}", template_kwargs={"x": "!"})) == b"!"
    assert bytes(intake.chat(chat, chat_template="{{ tools[0].name }}", tools=[{"name": "f"}])) == b"f"
    with pytest.raises(InvalidRequestError, match="syntax") as caught:
        intake.chat(chat, chat_template="{% if %}")
    assert caught.value.field == "chat_template"


def test_parameters_of_another_type_are_refused():
    with pytest.raises(InvalidRequestError, match="SamplingParams"):
        make("a", {"n": 1})
