"""One engine asked again and again: what came before, or could not be served, changes nothing for what comes after."""

from __future__ import annotations

import pytest

from octavo import LLM, SamplingParams
from tests.reported.padded import save_padded

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
OPTIONS = {"max_model_len": 512, "dtype": "float32"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_padded(tmp_path_factory.mktemp("padded"))


def ids_of(outputs):
    return [choice.token_ids for output in outputs for choice in output.outputs]


def prompt(length, seed):
    return [(31 * i + 7 * seed + i * i % 13) % 250 for i in range(length)]


def test_a_round_of_prompts_that_cannot_fit_ends(folder):
    # 16 tokens take a page: 400 do not fit into 20, which each is told, and 40 do.
    with LLM(folder, **OPTIONS, num_pages=20) as llm:
        short = [prompt(40, seed) for seed in range(10)]
        first = ids_of(llm.generate(short, GREEDY, use_tqdm=False))
        large = llm.generate([prompt(400, seed) for seed in range(5)], GREEDY, use_tqdm=False)
        assert [one.outputs[0].finish_reason for one in large] == ["error"] * 5
        assert all(one.outputs[0].token_ids == [] and "pages" in (one.error or "") for one in large)
        mixed = llm.generate([short[0], prompt(400, 9), short[1]], GREEDY, use_tqdm=False)
        assert [one.error is None for one in mixed] == [True, False, True]
        assert [mixed[0].outputs[0].token_ids, mixed[2].outputs[0].token_ids] == first[:2]
        assert ids_of(llm.generate(short, GREEDY, use_tqdm=False)) == first
        stats = llm.get_stats()
        assert (stats.used_slots, stats.pending_pages, stats.num_running, stats.num_waiting) == (0, 0, 0, 0)


def test_turns_that_fill_the_pages_in_pairs_go_on(folder):
    """Each conversation grows by its answer and is asked again beside another, until two of them are all that fits."""
    with LLM(folder, **OPTIONS, num_pages=22) as llm, LLM(folder, **OPTIONS, enable_prefix_caching=False) as cold:
        talks = [prompt(30 + 5 * seed, seed) for seed in range(4)]
        for _ in range(6):
            for pair in ((0, 1), (2, 3)):
                asked = [talks[index] for index in pair]
                answers = ids_of(llm.generate(asked, GREEDY, use_tqdm=False))
                assert answers == ids_of(cold.generate(asked, GREEDY, use_tqdm=False))
                for index, answer in zip(pair, answers, strict=True):
                    talks[index] = [*talks[index], *answer, *prompt(9, index)]
        assert max(map(len, talks)) > 150


def test_what_a_stop_string_left_in_the_cache_is_not_seen(folder):
    shared = prompt(64, 1)
    with LLM(folder, **OPTIONS) as llm, LLM(folder, **OPTIONS, enable_prefix_caching=False) as cold:
        free = SamplingParams(temperature=1.0, seed=5, max_tokens=40, structured_outputs={"regex": "[a-d]{40}"})
        text = cold.generate(shared, free, use_tqdm=False)[0].outputs[0].text
        stopped = SamplingParams(
            temperature=1.0, seed=5, max_tokens=40, structured_outputs={"regex": "[a-d]{40}"}, stop=text[20:26]
        )
        for _ in range(2):
            choice = llm.generate(shared, stopped, use_tqdm=False)[0].outputs[0]
            assert choice.text == text[: text.index(text[20:26])]
            assert choice.finish_reason == "stop"
        later = [[*shared, *map(ord, text[:length])] for length in (0, 8, 16, 24, 32)]
        warm = llm.generate(later, GREEDY, use_tqdm=False)
        assert ids_of(warm) == ids_of(cold.generate(later, GREEDY, use_tqdm=False))
        assert all(one.num_cached_tokens >= 48 for one in warm)


def test_a_prompt_of_exactly_so_many_blocks_is_the_same_warm_and_cold(folder):
    with LLM(folder, **OPTIONS) as llm, LLM(folder, **OPTIONS, enable_prefix_caching=False) as cold:
        for length in (16, 17, 32, 48, 53):
            asked = prompt(length, length)
            first, again = (llm.generate([asked], GREEDY, use_tqdm=False)[0] for _ in range(2))
            assert first.num_cached_tokens == 0
            assert again.num_cached_tokens == (length - 1) // 16 * 16
            assert ids_of([first]) == ids_of([again]) == ids_of(cold.generate([asked], GREEDY, use_tqdm=False))
