"""What becomes of each field of vLLM's sampling parameters: the source of docs/sampling-fields.md.

A test holds that no field is missing and that every test named here exists.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from octavo.protocol.sampling import REFUSED


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldSupport:
    """One field. text: the test that holds it (file::name), the note, or the reason."""

    status: Literal["supported", "noted", "refused"]
    text: str


def _done(test: str) -> FieldSupport:
    return FieldSupport(status="supported", text=f"tests/{test}")


def _noted(note: str) -> FieldSupport:
    return FieldSupport(status="noted", text=note)


SAMPLING_FIELDS: Final[dict[str, FieldSupport]] = {
    "n": _done("frontend/test_llm.py::test_choices_are_distinct_and_reproducible"),
    "temperature": _done("worker/test_sampling.py::test_frequencies_follow_the_reference"),
    "top_p": _done("worker/test_sampling.py::test_frequencies_follow_the_reference"),
    "top_k": _done("worker/test_sampling.py::test_filters_keep_exactly_the_reference_set"),
    "min_p": _done("worker/test_sampling.py::test_frequencies_follow_the_reference"),
    "presence_penalty": _done("worker/test_adjust.py::test_penalties_equal_the_plain_reference"),
    "frequency_penalty": _done("worker/test_adjust.py::test_penalties_equal_the_plain_reference"),
    "repetition_penalty": _done("worker/test_adjust.py::test_the_same_as_transformers"),
    "logit_bias": _done("worker/test_adjust.py::test_bias_is_added"),
    "allowed_token_ids": _done("worker/test_adjust.py::test_allowed_ids_leave_exactly_these"),
    "bad_words": _done("frontend/test_llm_sampling.py::test_bad_words_do_not_come_into_being"),
    "seed": _done("worker/test_sampling.py::test_seed_choice_and_position_each_change_the_draw"),
    "max_tokens": _done("frontend/test_intake.py::test_max_tokens_is_an_upper_limit"),
    "min_tokens": _done("worker/test_sampling.py::test_min_tokens_holds_back_every_stop_id_until_then"),
    "stop": _done("frontend/test_collect.py::test_a_stop_string_over_three_tokens_never_leaks_and_tells_the_engine"),
    "stop_token_ids": _done("frontend/test_collect.py::test_a_stop_token_stays_in_the_ids_but_not_in_the_text"),
    "ignore_eos": _done("frontend/test_intake.py::test_stop_ids_are_the_models_own_and_the_users"),
    "include_stop_str_in_output": _done(
        "frontend/test_collect.py::test_the_stop_string_can_be_included_and_waits_for_min_tokens"
    ),
    "skip_special_tokens": _done("frontend/test_collect.py::test_special_tokens_are_shown_on_request"),
    "logprobs": _done("worker/test_sampling.py::test_logprobs_equal_log_softmax_and_are_padded"),
    "prompt_logprobs": _done("worker/test_prompt_logprobs.py::test_prompts_have_the_log_probabilities_of_transformers"),
    "detokenize": _done("frontend/test_collect.py::test_without_detokenizing_there_are_ids_and_no_text"),
    "output_kind": _done("frontend/test_llm_sampling.py::test_streams_give_out_what_output_kind_says"),
    "stream_interval": _done("frontend/test_collect.py::test_a_stream_waits_for_its_interval"),
    "truncate_prompt_tokens": _done("frontend/test_intake.py::test_the_end_of_a_prompt_is_kept"),
    "skip_reading_prefix_cache": _done("frontend/test_llm_sampling.py::test_a_request_may_leave_the_cache_alone"),
    "logits_processors": _done("frontend/test_llm_sampling.py::test_functions_change_the_logits_of_their_request"),
    "extra_args": _done("worker/test_adjust.py::test_processors_of_the_engine_see_slots_come_and_go"),
    "repetition_detection": _done("frontend/test_collect.py::test_a_text_that_goes_round_in_circles_ends"),
    "logprob_token_ids": _done(
        "worker/test_prompt_logprobs.py::test_named_tokens_are_reported_in_place_of_the_likeliest"
    ),
    "trace_decode_token_ids": _done(
        "worker/test_prompt_logprobs.py::test_a_trace_is_replayed_with_the_models_log_probabilities"
    ),
    "structured_outputs": _done("frontend/test_forms.py::test_every_form_is_kept"),
    "thinking_token_budget": _noted("in chats of a server, whose model thinks; `LLM` refuses it by name"),
    "spaces_between_special_tokens": _noted(
        "taken and without effect: a text is what its tokens spell, no space is added"
    ),
    "flat_logprobs": _noted("taken and without effect: log-probabilities are lists of dictionaries, as without it"),
    **{name: FieldSupport(status="refused", text=reason) for name, reason in REFUSED.items()},
}


def render_markdown() -> str:
    """Return the page as Markdown."""
    words = {"supported": "supported", "noted": "accepted with a note", "refused": "refused"}
    rows = [f"| `{name}` | {words[row.status]} | {_shown(row.text)} |" for name, row in SAMPLING_FIELDS.items()]
    return "\n".join([_HEAD, "| field | | test, note or reason |", "|---|---|---|", *rows, ""])


def _shown(text: str) -> str:
    return f"`{text}`" if text.startswith("tests/") else text


_HEAD = """# Fields of SamplingParams

Written by `python -m tools.pages`. Every field that vLLM's `SamplingParams` has, and what becomes of it here. What each one means
is in [From Python](offline.md).
"""
