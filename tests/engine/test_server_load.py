"""Many clients at once, clients that leave, and an end while clients wait."""

import asyncio
import json
import time

import openai
import pytest
from httpclients import chat, client_of, several_of, told
from httpserving import NAME, posted, received, serving, tiny_engine, unhurried

from recguide.engine.server_answers import Answering
from recguide.engine.server_connections import PromptConnection
from recguide.engine.server_limits import ServerLimits
from recguide.engine.server_requests import AskedText, parsed
from recguide.sim.policies import fixed

pytestmark = pytest.mark.usefixtures("one_thread")


def test_those_who_wait_in_the_queue_may_leave_too() -> None:
    with serving(tiny_engine(unhurried(fixed(2)), running=1)) as server:

        async def ask():
            async with several_of(server) as client:
                first = asyncio.create_task(chat(client, max_tokens=100))
                await asyncio.sleep(0.1)
                await asyncio.gather(*(chat(client, timeout=0.2) for _ in range(5)), return_exceptions=True)
                return await first

        assert asyncio.run(ask()).usage.completion_tokens == 100
        assert server.idle()
        assert server.engine.log.totals.finished == {"length": 1, "cancelled": 5}


def test_two_hundred_streams_at_once_are_all_served() -> None:
    with serving(tiny_engine(fixed(4), running=16), ServerLimits(16, max_queue=256)) as server:

        async def one(client):
            stream = await chat(client, max_tokens=4, stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        async def ask():
            async with several_of(server) as client:
                return await asyncio.gather(*(one(client) for _ in range(200)))

        assert set(asyncio.run(ask())) == {told("user:say it\na:", 4).text}
        assert server.idle()
        assert server.engine.log.totals.finished == {"length": 200}


def test_beyond_the_queue_and_the_open_streams_there_is_429_with_retry_after() -> None:
    limits = ServerLimits(1, max_queue=2, max_streams=1)
    with serving(tiny_engine(unhurried(fixed(2)), running=1), limits) as server:

        async def ask():
            async with several_of(server) as client:
                stream = await chat(client, stream=True, max_tokens=100)
                with pytest.raises(openai.RateLimitError, match="stream: 1 streams are open, allowed: 1") as streams:
                    await chat(client, stream=True)
                waiting = [asyncio.create_task(chat(client, max_tokens=2)) for _ in range(2)]
                await asyncio.sleep(0.2)
                with pytest.raises(openai.RateLimitError, match="queue: 3 requests are in flight, allowed: 3") as queue:
                    await chat(client)
                assert [one async for one in stream]
                return streams.value, queue.value, await asyncio.gather(*waiting)

        streams, queue, waiting = asyncio.run(ask())
        assert [error.code for error in (streams, queue)] == ["too_many_streams", "queue_full"]
        assert {error.response.headers["retry-after"] for error in (streams, queue)} == {"1"}
        assert [answer.usage.completion_tokens for answer in waiting] == [2, 2]
        assert server.idle()


def test_a_client_that_leaves_its_stream_frees_its_pages_and_the_others_go_on() -> None:
    with serving(tiny_engine(unhurried(fixed(2)))) as server:
        pool = server.engine.scheduler.pool

        async def ask():
            async with several_of(server) as client:
                other = asyncio.create_task(chat(client, max_tokens=60))
                stream = await chat(client, stream=True)
                async for chunk in stream:
                    if chunk.choices[0].delta.content:
                        break
                held = pool.num_pages - pool.num_free
                await stream.close()
                return held, await other

        held, answer = asyncio.run(ask())
        assert held > 0
        assert answer.usage.completion_tokens == 60
        assert server.idle()
        finished = server.engine.log.totals.finished
        assert (finished["cancelled"], finished["length"]) == (1, 1)
        server.engine.check()


def test_a_client_that_gives_up_its_whole_answer_frees_its_pages() -> None:
    with serving(tiny_engine(unhurried(fixed(2)))) as server:
        client = client_of(server)
        with client, pytest.raises(openai.APITimeoutError):
            chat(client, timeout=0.3)
        assert server.idle()
        assert server.engine.log.totals.finished["cancelled"] == 1
        assert "recguide_client_disconnects_total 1.0" in server.service.metrics.text().decode()


def test_a_server_that_ends_lets_answers_on_their_way_come_to_their_end() -> None:
    with serving(tiny_engine(unhurried(fixed(2)))) as server:
        connection = server.connect()
        body = json.dumps({"model": NAME, "prompt": "ab", "max_tokens": 100, "ignore_eos": True}).encode()
        connection.sendall(posted("/v1/completions", body))
        while not server.engine.in_flight:
            time.sleep(0.01)
    found = connection.recv(65536)
    connection.close()
    assert found.startswith(b"HTTP/1.1 200")
    assert b'"completion_tokens":100' in found


def test_a_stream_whose_reader_takes_nothing_is_given_up() -> None:
    limits = ServerLimits(8, stall_s=0.3)
    with serving(tiny_engine(unhurried(fixed(2))), limits) as server:
        fields = {"model": NAME, "prompt": "ab", "max_tokens": 400, "stream": True, "ignore_eos": True}
        asked = parsed(json.dumps(fields).encode(), AskedText)
        sent = []

        async def send(message):
            sent.append(message["type"])
            if len(sent) > 3:
                await asyncio.Event().wait()

        async def receive():
            await asyncio.Event().wait()

        asyncio.run(Answering(server.service, asked)({"type": "http"}, receive, send))
        assert sent == ["http.response.start", *["http.response.body"] * 3]
        assert server.idle()
        assert server.engine.log.totals.finished == {"cancelled": 1}
        assert "recguide_client_disconnects_total 1.0" in server.service.metrics.text().decode()


@pytest.mark.parametrize("sent", [b"", b"GET /health HT", b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\nGET /he"])
def test_a_connection_that_gets_nowhere_is_cut_off(monkeypatch, sent) -> None:
    monkeypatch.setattr(PromptConnection, "check_s", 0.2)
    with serving(tiny_engine(fixed(4))) as server:
        connection, began = server.connect(sent), time.monotonic()
        try:
            found = received(connection)
        except ConnectionResetError:
            found = b""
        # the server below would wait for ever, and behind a whole request for five seconds
        assert time.monotonic() - began < 4
        assert b"HTTP/1.1 200" in found or b"/health HTTP/1.1" not in sent


def test_an_answer_that_takes_longer_than_the_looks_at_its_connection_comes_all_the_same(monkeypatch) -> None:
    monkeypatch.setattr(PromptConnection, "check_s", 0.1)
    with serving(tiny_engine(unhurried(fixed(2), 0.03))) as server, client_of(server) as client:
        assert chat(client, max_tokens=40).usage.completion_tokens == 40


def test_a_server_that_ends_cuts_off_what_takes_too_long_and_frees_its_pages() -> None:
    with serving(tiny_engine(unhurried(fixed(2), 0.05)), drain_s=1) as server:
        body = {"model": NAME, "prompt": "ab", "max_tokens": 500, "ignore_eos": True, "stream": True}
        connection = server.connect(posted("/v1/completions", json.dumps(body).encode()))
        assert connection.recv(12) == b"HTTP/1.1 200"
        began = time.monotonic()
    assert time.monotonic() - began < 10
    found = received(connection)
    assert b"data: " in found
    assert b"[DONE]" not in found
    assert server.engine.log.totals.finished == {"cancelled": 1}
    assert server.idle(0.1)
