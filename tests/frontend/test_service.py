"""The service in front of an engine process: streams, aborts, death, queue, drain."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time

import pytest

from octavo.base.errors import (
    EngineDeadError,
    InvalidRequestError,
    QueuedTokensError,
    QueueFullError,
    QueueTimeoutError,
    ShuttingDownError,
)
from octavo.config.schedule import ScheduleConfig
from octavo.frontend.service import RequestStream, TextService
from tests.engine_process.starting import running_client, running_service
from tests.frontend.bytes_model import make_intake, params


async def text_of(stream: RequestStream) -> str:
    return "".join([choice.text async for output in stream for choice in output.outputs])


async def until(condition, seconds=2.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def running(service: TextService) -> int:
    return service.stats().num_running


def test_a_stream_and_a_whole_answer_agree():
    async def run() -> None:
        async with running_service() as (service, _):
            stream = await service.generate("abc", params(max_tokens=7), request_id="mine")
            assert (stream.request_id, stream.prompt, stream.prompt_token_ids) == ("mine", "abc", [97, 98, 99])
            assert await text_of(stream) == "abcabca"
            whole = [out async for out in await service.generate("abc", params(max_tokens=7), kind="final")]
            assert [(o.outputs[0].text, o.finished, o.num_cached_tokens) for o in whole] == [("abcabca", True, 7)]
            assert service.num_open == 0

    asyncio.run(run())


def test_many_streams_at_once_keep_their_own_text():
    async def run() -> None:
        async with running_service() as (service, _):
            prompts = [f"<{index}>" for index in range(64)]
            streams = [await service.generate(p, params(max_tokens=40, n=2)) for p in prompts]
            for prompt, stream in zip(prompts, streams, strict=True):
                texts = ["", ""]
                async for output in stream:
                    for choice in output.outputs:
                        texts[choice.index] += choice.text
                assert texts[0] == (prompt * 20)[:40]
                assert texts[1] == (prompt * 20)[1:41]

    asyncio.run(run())


def test_a_stop_string_ends_the_choice_in_the_engine_too():
    async def run() -> None:
        async with running_service(tokens_per_step=3) as (service, _):
            stream = await service.generate("hello world ", params(max_tokens=1000, stop="o w"))
            assert await text_of(stream) == "hell"
            await until(lambda: running(service) == 0)

    asyncio.run(run())


def test_leaving_a_stream_aborts_at_once():
    async def run() -> None:
        async with running_service(step_seconds=0.005) as (service, _):
            async with await service.generate("abc", params(max_tokens=1000)) as stream:
                await anext(stream)
                assert running(service) == 1
            assert service.num_open == 0
            await until(lambda: running(service) == 0, seconds=1)
            with pytest.raises(StopAsyncIteration):
                await anext(stream)

    asyncio.run(run())


def test_a_cancelled_reader_aborts_through_its_finally():
    async def run() -> None:
        async with running_service(step_seconds=0.005) as (service, _):

            async def read() -> None:
                async with await service.generate("abc", params(max_tokens=1000)) as stream:
                    await text_of(stream)

            reader = asyncio.create_task(read())
            await until(lambda: running(service) == 1)
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
            await until(lambda: running(service) == 0, seconds=1)

    asyncio.run(run())


def test_abort_by_name_ends_the_streams_with_a_last_output():
    async def run() -> None:
        async with running_service(step_seconds=0.005) as (service, _):
            streams = [await service.generate("abc", params(max_tokens=1000), request_id="same") for _ in range(2)]
            other = await service.generate("xyz", params(max_tokens=1000), request_id="other")
            await anext(streams[0])
            assert service.abort("same") == 2
            for stream in streams:
                outputs = [output async for output in stream]
                assert outputs[-1].finished
                assert outputs[-1].outputs[0].finish_reason == "abort"
            assert (await anext(other)).outputs[0].text.startswith("x")
            await other.aclose()

    asyncio.run(run())


def test_a_reader_that_sleeps_finds_everything_in_one_output():
    async def run() -> None:
        async with running_service() as (service, _):
            stream = await service.generate("abc", params(max_tokens=900))
            await until(lambda: service.stats().num_steps >= 900 and running(service) == 0)
            outputs = [output async for output in stream]
            assert len(outputs) == 1
            assert outputs[0].outputs[0].token_ids == list(b"abc" * 300)

    asyncio.run(run())


def test_a_dead_engine_raises_in_every_stream_and_refuses_new_ones():
    async def run() -> None:
        async with running_service(step_seconds=0.02) as (service, process):
            streams = [await service.generate("abc", params(max_tokens=1000)) for _ in range(3)]
            await anext(streams[0])
            os.kill(process.pid, signal.SIGKILL)
            began = time.monotonic()
            for stream in streams:
                with pytest.raises(EngineDeadError, match="SIGKILL"):
                    await text_of(stream)
            assert time.monotonic() - began < 1.0
            assert not service.healthy
            assert service.num_open == 0
            with pytest.raises(EngineDeadError):
                await service.generate("abc", params())
            assert await service.drain(0.1)

    asyncio.run(run())


def test_tokens_before_the_death_are_delivered_first():
    async def run() -> None:
        async with running_service(crash_at=40) as (service, _):
            stream = await service.generate("abc", params(max_tokens=1000))
            await until(lambda: not service.healthy)
            output = await anext(stream)
            assert output.outputs[0].text == "abc" * 13
            assert not output.finished
            with pytest.raises(EngineDeadError, match="worker broke"):
                await anext(stream)

    asyncio.run(run())


def test_bad_requests_leave_nothing_open():
    async def run() -> None:
        async with running_service() as (service, _):
            for prompt, fields in (("", {}), ([999], {}), ("a" * 5000, {}), ("a", {"stop_token_ids": [300]})):
                with pytest.raises(InvalidRequestError):
                    await service.generate(prompt, params(**fields))
            assert service.num_open == 0
            assert await text_of(await service.generate("ok", params(max_tokens=2))) == "ok"

    asyncio.run(run())


def test_what_never_fits_ends_with_an_error_output():
    async def run() -> None:
        async with running_service() as (service, _):
            outputs = [out async for out in await service.generate([1] * 950, params(n=2), kind="final")]
            assert [choice.finish_reason for choice in outputs[0].outputs] == ["error", "error"]
            assert outputs[0].error == "too many pages"

    asyncio.run(run())


def test_a_full_queue_refuses_and_recovers():
    async def run() -> None:
        async with running_service(ScheduleConfig(max_num_queued_reqs=3), max_running=2, step_seconds=0.005) as (
            service,
            _,
        ):
            open_streams = [await service.generate("abc", params(max_tokens=1000)) for _ in range(2)]
            for stream in open_streams:
                await anext(stream)
            open_streams += [await service.generate("abc", params(max_tokens=1000)) for _ in range(3)]
            for _ in range(5):
                with pytest.raises(QueueFullError, match="3 requests are waiting"):
                    await service.generate("abc", params())
            for stream in open_streams:
                await stream.aclose()
            assert await text_of(await service.generate("abc", params(max_tokens=3))) == "abc"

    asyncio.run(run())


def test_the_queue_is_bounded_by_tokens_too():
    async def run() -> None:
        limits = ScheduleConfig(max_num_queued_tokens=100)
        async with running_service(limits, max_running=1, step_seconds=0.005) as (service, _):
            # One that is longer than the queue may come when nobody waits, and what runs does not wait.
            open_streams = [await service.generate("a" * 150, params(max_tokens=800))]
            await anext(open_streams[0])
            open_streams += [await service.generate("b" * 60, params()), await service.generate("c" * 40, params())]
            for _ in range(3):
                with pytest.raises(QueuedTokensError, match="100 tokens are waiting already, of 100"):
                    await service.generate("d", params())
            await open_streams[1].aclose()
            with pytest.raises(QueueFullError, match="40 tokens are waiting"):
                await service.generate("e" * 61, params())
            open_streams.append(await service.generate("f" * 60, params()))
            for stream in open_streams:
                await stream.aclose()
            assert await text_of(await service.generate("abc", params(max_tokens=3))) == "abc"

    asyncio.run(run())


def test_who_waits_too_long_is_told_so_and_leaves_the_queue():
    async def run() -> None:
        limits = ScheduleConfig(queue_timeout=0.2)
        async with running_service(limits, max_running=1, step_seconds=0.005) as (service, _):
            running = await service.generate("abc", params(max_tokens=100))
            await anext(running)
            began = time.monotonic()
            waiting = await service.generate("xyz", params())
            with pytest.raises(QueueTimeoutError, match=r"waited for 0\.2 seconds"):
                await text_of(waiting)
            assert 0.15 < time.monotonic() - began < 0.45
            await until(lambda: service.stats().num_waiting == 0)
            # Whoever runs is not touched by it, however long it takes.
            assert len(await text_of(running)) + 1 >= 99
            assert time.monotonic() - began > 0.3
            assert service.num_open == 0
            assert await text_of(await service.generate("abc", params(max_tokens=3))) == "abc"

    asyncio.run(run())


def test_draining_lets_running_requests_finish_and_refuses_new_ones():
    async def run() -> None:
        async with running_service(step_seconds=0.005) as (service, _):
            reading = asyncio.create_task(text_of(await service.generate("abc", params(max_tokens=60))))
            draining = asyncio.create_task(service.drain(5))
            await asyncio.sleep(0)
            assert service.draining
            with pytest.raises(ShuttingDownError):
                await service.generate("abc", params())
            assert await draining
            assert await reading == "abc" * 20

    asyncio.run(run())


def test_draining_aborts_what_takes_too_long():
    async def run() -> None:
        async with running_service(step_seconds=0.01) as (service, _):
            stream = await service.generate("abc", params(max_tokens=1000))
            assert not await service.drain(0.1)
            outputs = [output async for output in stream]
            assert outputs[-1].outputs[0].finish_reason == "abort"
            assert await service.drain(0.1)

    asyncio.run(run())


class SlowTokenizer:
    """Takes its time over every text, as a real one does over a long one, and lets other threads run."""

    special_tokens: dict[str, str] = {}

    def __init__(self) -> None:
        self.threads: set[str] = set()

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        self.threads.add(threading.current_thread().name)
        time.sleep(0.2)
        return list(text.encode())


def test_long_texts_do_not_hold_up_the_event_loop():
    async def run() -> None:
        async with running_client() as (client, _):
            tokenizer = SlowTokenizer()
            service = TextService(client, make_intake(tokenizer=tokenizer))
            long = "word " * 1000
            work = [asyncio.create_task(service.chat_prompt([{"role": "user", "content": long}])) for _ in range(3)]
            work.append(asyncio.create_task(service.generate(long, params())))
            # How long a template takes does not follow from the length of the chat.
            work.append(asyncio.create_task(service.chat_prompt([{"role": "user", "content": "x"}])))
            longest = 0.0
            while not all(task.done() for task in work):
                began = time.monotonic()
                await asyncio.sleep(0.005)
                longest = max(longest, time.monotonic() - began)
            assert len(await work[0]) == len(long) + len("[user]>")
            with pytest.raises(InvalidRequestError, match="5000 tokens, and may have 1023"):
                await work[3]
            assert longest < 0.15
            assert threading.current_thread().name not in tokenizer.threads
            await service.close()

    asyncio.run(run())


def test_the_cache_can_be_reset_and_a_refusal_is_told():
    async def run() -> None:
        async with running_service(step_seconds=0.005) as (service, _):
            assert await service.reset_prefix_cache()
            async with await service.generate("abc", params(max_tokens=1000)) as stream:
                await anext(stream)
                assert not await service.reset_prefix_cache()

    asyncio.run(run())


def test_texts_become_ids_and_ids_texts():
    async def run() -> None:
        async with running_service() as (service, _):
            text = "é" * 5000
            assert await service.tokenize(text) == list(text.encode())
            assert await service.detokenize([0x61, *text.encode(), 257]) == "a" + text + "</s>"
            for wrong in ([-1], [0, service.tokenizer.vocab_size]):
                with pytest.raises(InvalidRequestError, match="is not in the vocabulary, 0 to 258") as caught:
                    await service.detokenize(wrong)
                assert caught.value.field == "tokens"
            service.tokenizer = None
            with pytest.raises(InvalidRequestError, match="there is no tokenizer"):
                await service.tokenize("a")

    asyncio.run(run())


def test_chat_prompts_and_templates():
    async def run() -> None:
        async with running_service() as (service, _):
            chat = [{"role": "user", "content": "hi"}]
            assert bytes(await service.chat_prompt(chat)) == b"[user]hi>"
            assert service.max_model_len == 1024
            with pytest.raises(InvalidRequestError, match="role"):
                await service.chat_prompt([{"content": "hi"}])
            own = await service.chat_prompt(chat, chat_template="<{{ messages[0].content }}>")
            assert bytes(own) == b"<hi>"
            with pytest.raises(InvalidRequestError, match="syntax") as caught:
                await service.chat_prompt(chat, chat_template="{% if %}")
            assert caught.value.field == "chat_template"

    asyncio.run(run())


def test_closing_twice_is_fine_and_fails_what_is_open():
    async def run() -> None:
        async with running_service(step_seconds=0.005) as (service, _):
            stream = await service.generate("abc", params(max_tokens=1000))
            await service.close()
            with pytest.raises(EngineDeadError, match="shut down"):
                await text_of(stream)
            await service.close()

    asyncio.run(run())
