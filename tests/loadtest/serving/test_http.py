"""The HTTP client and the stream reader on a real socket: what arrives when, and every way in which it goes wrong."""

import asyncio
import shlex
import ssl
import subprocess
from pathlib import Path

import pytest

from stentor.loadtest.serving import http
from stentor.loadtest.serving.api import APIS, Prompt, Settings
from stentor.loadtest.serving.http import Address, HttpClient, parse_address
from stentor.loadtest.serving.meter import Meter
from stentor.loadtest.serving.stream import Stream
from stentor.tests.loadtest.serving.scripted import (
    DONE,
    END,
    HEAD,
    Answer,
    Asked,
    Script,
    Write,
    delta,
    event,
    frame,
    serving,
    token,
    tokens,
    usage,
)

pytestmark = pytest.mark.anyio


def _client(script: Script, timeout: float = 5.0, tls: ssl.SSLContext | None = None) -> HttpClient:
    return HttpClient(Address("https" if tls else "http", "127.0.0.1", script.port), {"X-Key": "k"}, timeout, tls)


async def _post(client: HttpClient, count: int = 3, api: str = "completions", keep_text: bool = True) -> Stream:
    found = Stream(APIS[api].read, Meter(), keep_text)
    await client.post(APIS[api].path, APIS[api].body(Prompt(tokens=[1], output_tokens=count), Settings("m")), found)
    return found


async def _asked(answer: Answer, timeout: float = 60.0, api: str = "completions") -> Stream:
    async with serving(answer) as script:
        client = _client(script, timeout)
        try:
            return await asyncio.wait_for(_post(client, api=api), 60)
        finally:
            client.close()


def _says(*parts: bytes, pause: float = 0.0, close: bool = False) -> Answer:
    """Each part is a write of its own."""

    async def answer(asked: Asked, write: Write) -> bool:
        for part in parts:
            await write(part)
            await asyncio.sleep(pause)
        return close

    return answer


@pytest.mark.parametrize("api", ["completions", "chat"])
@pytest.mark.parametrize("size", [1, 3, 7, 64, 1 << 20])
async def test_an_answer_is_the_same_however_its_bytes_are_cut(api: str, size: int) -> None:
    word = token if api == "completions" else lambda text, finish=None: delta(finish, content=text)
    whole = HEAD + b"".join([word(" a"), frame(b": ping\n\n"), word(" b"), word(" c", "stop"), usage(5, 3), DONE, END])
    found = await _asked(_says(*[whole[at : at + size] for at in range(0, len(whole), size)]), api=api)
    assert (found.error, found.over, found.text, found.finish) == (None, True, " a b c", "stop")
    assert (found.tokens, len(found.gaps), found.chunk_tokens) == (3, 2, [1, 1])
    assert found.usage is not None
    assert (found.usage.prompt_tokens, found.usage.completion_tokens, found.server) == (5, 3, "script/1")


async def test_times_are_those_of_the_writes() -> None:
    found = await _asked(_says(HEAD, token(), token() + token(), token() + DONE + END, pause=0.05))
    assert found.ttft is not None
    assert 0.045 < found.ttft < 0.3
    first, second, third = found.gaps
    assert 0.03 < first < 0.3
    assert second == 0.0, "they came in one read"
    assert 0.03 < third < 0.3
    assert found.ended == pytest.approx(found.arrivals[0] + sum(found.gaps), abs=1e-6)


async def test_usage_in_every_chunk_tells_how_many_tokens_each_holds() -> None:
    def counted(completion: int) -> bytes:
        return event(
            {"choices": [{"text": " x"}], "usage": {"prompt_tokens": 2, "completion_tokens": completion}},
        )

    found = await _asked(_says(HEAD + counted(1) + counted(4) + counted(6) + DONE + END))
    assert (found.chunk_tokens, found.tokens) == ([3, 2], 6)


PLAIN = b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
FULL = b'{"error":{"message":"queue full"}}'


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (_says(PLAIN % (b"503 Busy", len(FULL), FULL)), "http 503: queue full"),
        (_says(PLAIN % (b"401 No", 2, b"{}")), "http 401: {}"),
        (_says(HEAD + token() + event({"error": {"message": "worker died"}}) + END), "stream: worker died"),
        (_says(HEAD + token() + END), "truncated: the stream ended before [DONE]"),
        (_says(HEAD + token(), close=True), "truncated: the stream ended before [DONE]"),
        (_says(HEAD + event(b"{]")), "malformed: an event that is not the API's: "),
        (_says(HEAD + event(b'{"choices":[{"text":"\xff"}]}')), "malformed: an event that is not the API's: "),
        (_says(PLAIN % (b"200 OK", 23, b'{"message":"no stream"}')), "http 200: no stream"),
        (_says(b"220 smtp ready\r\n"), "malformed: no HTTP answer: "),
        (_says(b"", close=True), "connection: closed before an answer came"),
        (_says(HEAD[:30], close=True), "connection: closed before an answer came"),
    ],
)
async def test_what_goes_wrong_is_one_failed_request_that_says_what(answer: Answer, error: str) -> None:
    found = await _asked(answer)
    assert found.over
    assert (found.error or "").startswith(error)
    assert found.ended >= found.began


async def _silent(asked: Asked, write: Write) -> bool:
    await asyncio.Event().wait()
    return True


async def _stalls(asked: Asked, write: Write) -> bool:
    await write(HEAD + token() + token())
    return await _silent(asked, write)


@pytest.mark.parametrize(("answer", "count"), [(_silent, 0), (_stalls, 2)])
async def test_silence_ends_after_the_timeout_and_what_came_is_kept(answer: Answer, count: int) -> None:
    found = await _asked(answer, timeout=0.1)
    assert found.error == "timeout: silent for 0.1 s"
    assert found.tokens == count
    assert found.ended - found.began >= 0.1


async def test_a_slow_stream_is_not_a_silent_one() -> None:
    for _ in range(20):  # on a busy machine a token may be as late as a silent one
        found = await _asked(_says(HEAD, *[token()] * 6, DONE + END, pause=0.1), timeout=0.45)
        if (found.error, found.tokens) == (None, 6):
            return
    pytest.fail("it is taken for silent")


async def test_nobody_listening_is_a_failed_request() -> None:
    async with serving() as script:
        pass
    found = await _post(_client(script))
    assert found.error == "connection: Connection refused"


async def test_connections_are_kept_and_taken_up_again() -> None:
    async with serving() as script:
        client = _client(script)
        for _ in range(3):
            assert (await _post(client)).error is None
        await asyncio.gather(_post(client), _post(client))
        assert script.connections == 2
        assert script.prompts[0].headers["x-key"] == "k"
        client.close()


async def test_a_connection_that_the_server_closed_meanwhile_is_replaced() -> None:
    async def once(asked: Asked, write: Write) -> bool:
        await tokens(asked, write)
        return True

    async with serving(once) as script:
        client = _client(script)
        for _ in range(3):
            assert (await _post(client)).error is None
        assert script.connections == 3
        client.close()


async def test_a_connection_that_dies_under_the_next_request_is_replaced_too() -> None:
    """The server closes without an answer: on a kept connection that is no failure of the request."""
    seen: list[int] = []

    async def second_time_gone(asked: Asked, write: Write) -> bool:
        seen.append(asked.connection)
        if seen.count(asked.connection) == 2:
            return True
        await tokens(asked, write)
        return False

    async with serving(second_time_gone) as script:
        client = _client(script)
        assert [(await _post(client)).error for _ in range(3)] == [None] * 3
        assert seen == [1, 1, 2, 2, 3]
        client.close()


async def test_a_kept_connection_that_is_lost_while_an_answer_is_due_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server that dies over a request is not asked again in silence."""
    monkeypatch.setattr(http, "STALE_SECONDS", 0.05)

    async def dies_over_the_second(asked: Asked, write: Write) -> bool:
        if len(script.prompts) == 2:
            await asyncio.sleep(0.1)
            return True
        await tokens(asked, write)
        return False

    async with serving(dies_over_the_second) as script:
        client = _client(script)
        assert (await _post(client)).error is None
        assert (await _post(client)).error == "connection: closed before an answer came"
        assert len(script.prompts) == 2
        client.close()


async def test_the_end_of_a_stream_counts_even_where_the_message_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "AFTER_DONE_SECONDS", 0.05)
    async with asyncio.timeout(60):  # well before the server's silence would end it
        found = await _asked(_says(HEAD + token() + DONE, pause=0.3), timeout=3600)
    assert (found.error, found.over) == (None, True)


async def test_a_cancelled_request_closes_its_connection() -> None:
    async def drips(asked: Asked, write: Write) -> bool:
        await write(HEAD)
        while True:
            await write(token())
            await asyncio.sleep(0.005)

    async with serving(drips) as script:
        task = asyncio.create_task(_post(_client(script)))
        while not script.at_once:
            await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(60):
            while script.at_once:
                await asyncio.sleep(0.005)


async def test_plain_requests_give_any_status_and_fail_without_an_answer() -> None:
    async with serving() as script:
        client = _client(script)
        assert (await client.get("/v1/models")).status == 200
        missing = await client.get("/nowhere")
        assert (missing.status, missing.server) == (404, "script/1")
        client.close()
    assert (await client.get("/metrics")).error == "connection: Connection refused"


async def test_tls_is_spoken_and_a_certificate_that_nobody_vouches_for_refused(tmp_path: Path) -> None:
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=localhost "
        "-addext subjectAltName=IP:127.0.0.1 -keyout key.pem -out cert.pem"
    )
    subprocess.run(shlex.split(command), cwd=tmp_path, check=True, capture_output=True)
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    theirs.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    async with serving(tls=theirs) as script:
        trusting = _client(script, tls=ssl.create_default_context(cafile=str(tmp_path / "cert.pem")))
        assert (await _post(trusting)).error is None
        trusting.close()
        doubting = _client(script, tls=ssl.create_default_context())
        assert "certificate" in ((await _post(doubting)).error or "")
        await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("localhost:9", "http://localhost:9"),
        ("https://api.example.com/v1/", "https://api.example.com"),
        ("http://h:80/deep/v1", "http://h/deep"),
        ("http://[::1]:8000", "http://[::1]:8000"),
    ],
)
def test_an_address_is_a_base_without_v1(url: str, found: str) -> None:
    assert parse_address(url).url == found


@pytest.mark.parametrize("url", ["ftp://h", "http://", "http://h:x", ""])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="is no address"):
        parse_address(url)
