"""What is sent to each API, and what its events are taken to say."""

import json
from typing import Any

import msgspec
import pytest

from stentor.loadtest.serving.api import APIS, Message, Prompt, Settings, error_text

CHAT, COMPLETIONS = APIS["chat"], APIS["completions"]
TALK = Prompt([Message("system", "Be brief."), Message("user", "Hi")], output_tokens=5)


def _body(api: str, prompt: Prompt = TALK, **settings: Any) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(APIS[api].body(prompt, Settings("m", **settings)))
    return body


def test_the_body_of_a_chat_carries_its_messages_and_asks_for_usage() -> None:
    assert _body("chat") == {
        "model": "m",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        "max_tokens": 5,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_a_completion_takes_ids_as_they_are_and_a_conversation_as_lines() -> None:
    assert _body("completions")["prompt"] == "Be brief.\nHi"
    assert _body("completions", Prompt(tokens=[5, 6]))["prompt"] == [5, 6]
    assert "max_tokens" not in _body("completions", Prompt(tokens=[5, 6]))


def test_extra_fields_have_the_last_word_and_null_removes() -> None:
    body = _body("chat", temperature=0.0, ignore_eos=True, extra={"max_tokens": None, "top_k": 4, "temperature": 1})
    assert "max_tokens" not in body
    assert (body["top_k"], body["temperature"], body["ignore_eos"]) == (4, 1, True)


@pytest.mark.parametrize(
    ("choice", "text", "tokens"),
    [
        ({"delta": {"role": "assistant", "content": ""}}, "", 0),
        ({"delta": {"content": " a"}}, " a", 1),
        ({"delta": {"reasoning_content": "hm"}}, "", 1),
        ({"delta": {"tool_calls": [{"index": 0}]}}, "", 1),
        ({"delta": {"content": " a b"}, "token_ids": [1, 2]}, " a b", 2),
        ({"delta": {}, "finish_reason": "stop"}, "", 0),
    ],
)
def test_a_delta_counts_when_it_brings_output(choice: dict[str, Any], text: str, tokens: int) -> None:
    event = CHAT.read(json.dumps({"choices": [choice]}).encode())
    assert (event.text, event.tokens, event.finish) == (text, tokens, choice.get("finish_reason"))


def test_chunks_of_completions_count_their_ids_where_the_server_gives_them() -> None:
    assert COMPLETIONS.read(b'{"choices":[{"text":" a"}]}').tokens == 1
    assert COMPLETIONS.read(b'{"choices":[{"text":"","finish_reason":"stop"}]}').tokens == 0
    assert COMPLETIONS.read(b'{"choices":[{"text":" a b c","token_ids":[1,2,3]}]}').tokens == 3


@pytest.mark.parametrize("api", APIS)
def test_usage_and_errors_are_found_and_nonsense_is_refused(api: str) -> None:
    found = APIS[api].read(b'{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":9,"total_tokens":12}}').usage
    assert found is not None
    assert (found.prompt_tokens, found.completion_tokens) == (3, 9)
    assert APIS[api].read(b'{"error":{"message":"no\\nmemory","code":500}}').error == "no memory"
    assert APIS[api].read(b'{"error":"gone"}').error == "gone"
    with pytest.raises(msgspec.DecodeError):
        APIS[api].read(b"{")
    with pytest.raises(msgspec.DecodeError):
        APIS[api].read(b'{"choices":3}')


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"error":{"message":"too long"}}', "too long"),
        (b'{"detail":"not\\nfound"}', "not found"),
        (b"<html>\n busy</html>", "<html> busy</html>"),
        (b"x" * 5000, "x" * 199 + "…"),
    ],
)
def test_the_body_of_a_failure_becomes_one_line(body: bytes, text: str) -> None:
    assert error_text(body) == text
