"""OpenAI's own client reads every answer."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

from octavo.config.serve import ServeConfig
from tests.server.fake_service import FakeService, answer_text
from tests.server.harness import with_client
from tests.server.speaker import Speaker

MESSAGES: Any = [{"role": "user", "content": "Hi"}]


def _connect(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=url + "/v1", api_key="none", max_retries=0)


def test_chat_whole_and_streamed(service: FakeService, config: ServeConfig) -> None:
    async def work(api: openai.AsyncOpenAI) -> None:
        whole = await api.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=5, n=2, logprobs=True)
        assert whole.choices[1].message.content == answer_text(1, 5)
        assert whole.choices[0].logprobs is not None
        assert whole.choices[0].logprobs.content is not None
        assert whole.choices[0].logprobs.content[0].bytes == list(b"Ein")
        assert whole.usage is not None
        assert whole.usage.prompt_tokens_details is not None
        assert whole.usage.prompt_tokens_details.cached_tokens == 0
        stream = await api.chat.completions.create(
            model="tiny", messages=MESSAGES, max_tokens=5, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        assert chunks[0].choices[0].delta.role == "assistant"
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == answer_text(0, 5)
        assert chunks[-2].choices[0].finish_reason == "length"
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == 5

    with_client(service, config, _connect, work)


def test_completions_with_logprobs(service: FakeService, config: ServeConfig) -> None:
    async def work(api: openai.AsyncOpenAI) -> None:
        answer = await api.completions.create(model="tiny", prompt=["a", "b"], max_tokens=3, n=3, logprobs=2)
        assert [choice.index for choice in answer.choices] == list(range(6))
        assert answer.choices[5].text == answer_text(2, 3)
        assert answer.choices[0].logprobs is not None
        assert answer.choices[0].logprobs.text_offset == [0, 3, 9]
        assert [model.id async for model in await api.models.list()] == ["tiny", "small"]

    with_client(service, config, _connect, work)


def test_errors_become_its_exceptions(service: FakeService, config: ServeConfig) -> None:
    async def work(api: openai.AsyncOpenAI) -> None:
        with pytest.raises(openai.BadRequestError) as bad:
            await api.chat.completions.create(model="tiny", messages=MESSAGES, temperature=-1)
        assert (bad.value.param, bad.value.type) == ("temperature", "invalid_request_error")
        with pytest.raises(openai.NotFoundError) as missing:
            await api.chat.completions.create(model="other", messages=MESSAGES)
        assert missing.value.code == "model_not_found"
        service.queue_full = True
        with pytest.raises(openai.RateLimitError):
            await api.chat.completions.create(model="tiny", messages=MESSAGES)
        service.queue_full = False
        service.fail_at = 1
        stream = await api.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
        with pytest.raises(openai.APIError, match="not numbers"):
            _ = [chunk async for chunk in stream]

    with_client(service, config, _connect, work)


def test_a_stream_that_is_closed_aborts(service: FakeService, config: ServeConfig) -> None:
    service.delay = 0.02

    async def work(api: openai.AsyncOpenAI) -> None:
        stream = await api.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=50, stream=True)
        async for chunk in stream:
            if chunk.choices[0].delta.content:
                break
        await stream.close()
        for _ in range(200):
            if not service.open:
                break
            await asyncio.sleep(0.005)
        assert not service.open
        assert len(service.aborted) == 1

    with_client(service, config, _connect, work)


def test_calls_and_thoughts(config: ServeConfig) -> None:
    call = '<tool_call>{"name": "weather", "arguments": {"city": "Köln"}}</tool_call>'
    service = Speaker(f"<think>Hm.</think>I look.{call}{call}", template="<tool_call><think>")
    weather: Any = {"type": "object", "properties": {"city": {"type": "string"}}}
    tools: Any = [{"type": "function", "function": {"name": "weather", "parameters": weather}}]

    async def work(api: openai.AsyncOpenAI) -> None:
        whole = (await api.chat.completions.create(model="tiny", messages=MESSAGES, tools=tools)).choices[0]
        async with api.chat.completions.stream(model="tiny", messages=MESSAGES, tools=tools) as stream:
            kinds = [event.type async for event in stream]
            streamed = (await stream.get_final_completion()).choices[0]
        assert kinds.count("tool_calls.function.arguments.done") == 2
        for choice in (whole, streamed):
            assert (choice.finish_reason, choice.message.content) == ("tool_calls", "I look.")
            assert choice.message.model_extra is not None
            assert choice.message.model_extra["reasoning_content"] == "Hm."
            assert choice.message.tool_calls is not None
            functions = [one.function for one in choice.message.tool_calls if one.type == "function"]
            assert [(one.name, one.arguments) for one in functions] == [("weather", '{"city": "Köln"}')] * 2
            assert len({one.id for one in choice.message.tool_calls}) == 2
        answered: Any = [*MESSAGES, whole.message, {"role": "tool", "tool_call_id": "x", "content": "18 C"}]
        await api.chat.completions.create(model="tiny", messages=answered, tools=tools)
        assert service.conversations[-1][0][1]["tool_calls"][1]["function"]["name"] == "weather"

    with_client(service, config, _connect, work)
