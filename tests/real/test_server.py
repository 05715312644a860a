"""`octavo serve` with the embedded model and the official client: right answers, no mixing, everything given back."""

from __future__ import annotations

import threading

import httpx
import openai
import pytest

from octavo.checkpoint.open import open_checkpoint
from octavo.config.model import ModelConfig
from octavo.frontend.text.tokenizer import Tokenizer, load_tokenizer
from tests.real.oracle import read_answers
from tests.real.serving import check_texts, served_texts, serving, wait_until
from tests.server.harness import samples
from tests.server.test_bad_input import CASES

ANSWERS = read_answers()
QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
# Cases whose verdict depends on the small vocabulary, context or body limit of the fake service.
_FAKE_LIMITS = {
    "body too large",
    "prompt too long",
    "conversation too long",
    "logprobs over the limit",
}


@pytest.fixture(scope="module")
def url():
    with serving("--max-model-len", "2048", "--dtype", "float32") as address:
        yield address


@pytest.fixture(scope="module")
def client(url) -> openai.OpenAI:
    return openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=300)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    checkpoint = open_checkpoint(ModelConfig(model="demo"))
    assert checkpoint.tokenizer is not None
    return load_tokenizer(checkpoint.tokenizer)


def gauges(url: str) -> dict[str, float]:
    """Return every sample of the metrics page by its bare name, state labels kept."""
    found = samples(httpx.get(url + "/metrics", timeout=10).text)
    return {name.replace('model_name="demo",', "").replace('{model_name="demo"}', ""): v for name, v in found.items()}


def idle(url: str) -> bool:
    found = gauges(url)
    busy = [v for k, v in found.items() if "num_requests" in k or "slots_used" in k or 'used"' in k or 'pending"' in k]
    assert len(busy) >= 4, sorted(found)
    return not any(busy)


@pytest.mark.parametrize("stream", [False, True])
def test_greedy_text_is_the_oracles(url, tokenizer, stream):
    check_texts(served_texts(url, "demo", ANSWERS, stream=stream), tokenizer, ANSWERS)


def test_chat_stream_equals_chat(client):
    whole = client.chat.completions.create(model="demo", messages=QUESTION, max_tokens=32, temperature=0)
    assert "Paris" in whole.choices[0].message.content
    text, finish, usage = "", None, None
    for chunk in client.chat.completions.create(
        model="demo",
        messages=QUESTION,
        max_tokens=32,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    ):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            finish = choice.finish_reason or finish
    assert (text, finish) == (whole.choices[0].message.content, whole.choices[0].finish_reason)
    assert usage.completion_tokens == whole.usage.completion_tokens
    assert usage.prompt_tokens == whole.usage.prompt_tokens


def test_completion_logprobs(client):
    answer = client.completions.create(
        model="demo", prompt="Once upon a time, there was a", max_tokens=1, temperature=0, logprobs=3
    ).choices[0]
    assert answer.text == " small"
    # A figure known from another engine: " small" -2.781, " town" -2.945.
    top = answer.logprobs.top_logprobs[0]
    assert top[" small"] == pytest.approx(-2.781, abs=2e-3)
    assert top[" town"] == pytest.approx(-2.945, abs=2e-3)
    assert answer.logprobs.token_logprobs == [top[" small"]]


def test_three_choices_are_seeded_and_different(client):
    def ask(seed: int) -> list[str]:
        answer = client.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": "Name an animal."}],
            n=3,
            seed=seed,
            temperature=1.0,
            max_tokens=16,
        )
        assert [choice.index for choice in answer.choices] == [0, 1, 2]
        return [choice.message.content for choice in answer.choices]

    first = ask(5)
    assert first == ask(5)
    assert len(set(first)) == 3


def test_an_aborted_stream_gives_everything_back(url, client):
    before = gauges(url)
    stream = client.completions.create(
        model="demo", prompt="Count: 1 2 3", max_tokens=1500, n=3, stream=True, extra_body={"ignore_eos": True}
    )
    for number, _ in enumerate(stream):
        if number == 5:
            break
    stream.close()
    wait_until(lambda: idle(url), 10)
    after = gauges(url)
    generated = "octavo:generation_tokens_total"
    assert after[generated] - before[generated] < 1500


def test_64_concurrent_chats_keep_their_own_code_word(client):
    words = [f"{colour}{number}" for number, colour in enumerate(["red", "blue", "green", "gold"] * 16)]

    def ask(word: str) -> str:
        question = f"The code word is {word}. Repeat the code word {word} and nothing else."
        answer = client.chat.completions.create(
            model="demo", messages=[{"role": "user", "content": question}], max_tokens=12, temperature=0
        )
        return answer.choices[0].message.content

    serial = [ask(word) for word in words[:8]]
    answers = [""] * len(words)

    def keep(number: int) -> None:
        answers[number] = ask(words[number])

    threads = [threading.Thread(target=keep, args=(number,)) for number in range(len(words))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers[:8] == serial
    for number, answer in enumerate(answers):
        assert answer
        assert not [other for other in words if other != words[number] and other in answer.split()]
    assert sum(word in answer for word, answer in zip(words, answers, strict=True)) > 48


def test_bad_input_is_refused_and_the_next_good_request_answered(url):
    cases = [case for case in CASES if case[0] not in _FAKE_LIMITS]
    assert len(cases) >= 40
    good = {"/v1/chat/completions": {"messages": QUESTION, "max_tokens": 2}, "/v1/completions": {"prompt": "Hi"}}
    with httpx.Client(base_url=url, timeout=60) as http:
        for name, route, change, status, param in cases:
            base = {"model": "demo", "max_tokens": 4, **good.get(route, {})}
            body = change.replace(b'"tiny"', b'"demo"') if isinstance(change, bytes) else None
            bad = http.post(route, content=body) if body is not None else http.post(route, json={**base, **change})
            assert bad.status_code == status, (name, bad.status_code, bad.text)
            assert bad.json()["error"]["param"] == param, (name, bad.text)
        for ids, field in (([0, 5, 10**9], "prompt"), ([-1], "prompt"), ([5] * 2048, "prompt")):
            bad = http.post("/v1/completions", json={"model": "demo", "prompt": ids})
            assert bad.status_code == 400
            assert bad.json()["error"]["param"] == field
        assert http.post("/v1/completions", json={"model": "demo", "prompt": "Hi", "max_tokens": 2}).status_code == 200
    wait_until(lambda: idle(url), 10)
