"""``stentor chat``, against a server on a port of its own."""

import asyncio
import io
import json
from collections.abc import Callable

import httpx
import pytest

from stentor.server.main.chat import ChatFailed, Conversation, chat, open_client
from stentor.server.main.commands import run
from stentor.tests.fakes import FakeEngine, fake_state, says
from stentor.tests.server.harness import on_loopback

pytestmark = pytest.mark.anyio


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


async def _with_server(engine: FakeEngine, use: Callable[[Conversation], None]) -> None:
    async with on_loopback(fake_state(engine)) as url:
        with open_client(f"{url}/v1/", None) as client:
            await asyncio.to_thread(use, Conversation(client))


async def test_one_question_is_answered_and_the_command_ends() -> None:
    for prompt, source in (("hi", io.StringIO()), (None, io.StringIO("hi"))):
        output, notes = io.StringIO(), io.StringIO()
        await _with_server(
            FakeEngine(answer=says("hello there")),
            lambda talk, p=prompt, s=source, o=output, n=notes: chat(talk, p, s, o, n),  # type: ignore[misc]
        )
        assert (output.getvalue(), notes.getvalue()) == ("hello there\n", "")


async def test_lines_are_a_conversation_until_it_begins_anew() -> None:
    lines = "one\\\ntwo\n\n/what\nmore\n/new\nthree\n/system\nfour\n/quit\nfive\n"
    output, notes, sent = io.StringIO(), Terminal(), list[list[str]]()

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append([f"{each['role']}: {each['content']}" for each in json.loads(request.content)["messages"]])
        return httpx.Response(200, text='data: {"choices": [{"delta": {"content": "yes"}}]}\n\ndata: [DONE]\n\n')

    with httpx.Client(transport=httpx.MockTransport(answer), base_url="http://server") as client:
        conversation = Conversation(client)
        conversation.begin("be brief")
        chat(conversation, None, Terminal(lines), output, notes)
    assert output.getvalue() == "yes\n" * 4
    brief, first = "system: be brief", "user: one\ntwo"
    assert sent == [
        [brief, first],
        [brief, first, "assistant: yes", "user: more"],
        [brief, "user: three"],
        ["user: four"],
    ]
    assert notes.getvalue().count("/quit or Ctrl-D ends") == 2


async def test_what_is_refused_is_one_line_and_no_part_of_the_conversation() -> None:
    def talk(conversation: Conversation) -> None:
        conversation.asked = {"temperature": 9}
        with pytest.raises(ChatFailed, match=r"^the server answered 400: .*temperature"):
            chat(conversation, "hi", io.StringIO(), io.StringIO(), io.StringIO())
        notes = io.StringIO()
        chat(conversation, None, Terminal("hi\n"), io.StringIO(), notes)
        assert "the server answered 400" in notes.getvalue()
        assert conversation.messages == []

    await _with_server(FakeEngine(answer=says("yes")), talk)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (httpx.Response(502, text="<html>"), "^the server answered 502$"),
        (httpx.Response(200, text='data: {"error": {"message": "the model ended"}}\n'), "^the model ended$"),
        (httpx.Response(200, text="data: {\n"), "^the answer broke off: "),
    ],
)
async def test_a_server_that_fails_is_told_in_one_line(answer: httpx.Response, why: str) -> None:
    transport = httpx.MockTransport(lambda _: answer)
    with (
        httpx.Client(transport=transport, base_url="http://server") as client,
        pytest.raises(ChatFailed, match=why),
    ):
        Conversation(client).ask("hi", lambda *_: None)


async def test_what_is_stopped_stays_and_thoughts_are_told_apart() -> None:
    chunks = (
        'data: {"choices": [{"delta": {"reasoning_content": "hm"}}]}\n\n'
        'data: {"choices": [{"delta": {"content": "so"}}]}\n\ndata: {"choices": [{"delta": {"content": " far"}}]}\n\n'
    )
    told: list[tuple[str, bool]] = []

    def write(piece: str, thought: bool) -> None:
        told.append((piece, thought))
        if len(told) == 2:
            raise KeyboardInterrupt

    answer = httpx.MockTransport(lambda _: httpx.Response(200, text=chunks))
    with httpx.Client(transport=answer, base_url="http://server") as client:
        conversation = Conversation(client)
        conversation.ask("hi", write)
        assert told == [("hm", True), ("so", False)]
        assert conversation.messages[-1]["role"] == "assistant"


async def test_without_a_server_the_command_says_how_to_start_one() -> None:
    with (
        open_client("http://127.0.0.1:9", None) as client,
        pytest.raises(ChatFailed, match=r"no server at [^ ]*: connection refused; .*serve"),
    ):
        Conversation(client).ask("hi", lambda *_: None)


async def test_the_command_knows_vllm_s_spellings(capsys: pytest.CaptureFixture[str]) -> None:
    engine = FakeEngine(answer=says("Well."))
    async with on_loopback(fake_state(engine)) as url:
        given = ["chat", "--url", f"{url}/v1", "--model-name", "fake/model", "--system-prompt", "Be brief.", "-q", "hi"]
        assert await asyncio.to_thread(run, given) == 0
    assert capsys.readouterr().out == "Well.\n"
    assert b"Be brief." in bytes(engine.streams[0].prompt)


@pytest.mark.parametrize("url", ["http://[::", "ftp://127.0.0.1", "http://", "", "127.0.0.1:port"])
async def test_what_is_no_address_is_told_in_one_line(url: str) -> None:
    with pytest.raises(ChatFailed, match=r"^--url "):
        open_client(url, None)


async def test_an_address_need_not_say_that_it_is_http() -> None:
    with open_client("localhost:8000/v1", None) as client:
        assert client.base_url == "http://localhost:8000"


async def test_a_key_that_no_header_can_carry_is_refused_without_being_shown() -> None:
    for key in ("ké", "a\nb"):
        with pytest.raises(ChatFailed, match="STENTOR_API_KEY") as refused:
            open_client("http://127.0.0.1:9", key)
        assert key not in str(refused.value)


async def test_an_empty_prompt_is_not_sent() -> None:
    with open_client("http://127.0.0.1:9", None) as client:
        for prompt, source in ((" ", ""), (None, "\n")):
            with pytest.raises(ChatFailed, match="nothing was asked"):
                chat(Conversation(client), prompt, io.StringIO(source), io.StringIO(), io.StringIO())
