"""Items as messages: what one answer of the model was becomes one message."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stentor.protocols.common.errors import BadRequest
from stentor.protocols.common.limits import Limits
from stentor.protocols.openai.responses.items import read_items
from stentor.server.api.responses.conversion import droppable, messages_of
from stentor.server.api.responses.encrypted_content import EncryptedContent
from stentor.server.api.responses.ids import Ids, random_id


def messages(*items: dict[str, Any], unseal: Any = None) -> list[dict[str, Any]]:
    return messages_of(read_items(list(items), Limits(), random_id), unseal or (lambda text, _use=b"": text))


CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
CUSTOM = {"type": "custom_tool_call", "call_id": "c2", "name": "run", "input": 'say "hi"'}
THOUGHT = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
SAID = {"role": "assistant", "content": "Let me see."}
ASKED = {"role": "user", "content": "hello"}


def test_reasoning_text_and_calls_in_a_row_are_one_message_and_the_next_answer_another() -> None:
    found = messages(ASKED, THOUGHT, SAID, CALL, CUSTOM, THOUGHT, SAID)
    assert [message["role"] for message in found] == ["user", "assistant", "assistant"]
    whole, after = found[1:]
    assert (whole["reasoning_content"], whole["content"]) == ("hm", "Let me see.")
    assert [call["function"]["name"] for call in whole["tool_calls"]] == ["f", "run"]
    assert whole["tool_calls"][1]["function"]["arguments"] == '{"input":"say \\"hi\\""}'
    assert set(after) == {"role", "reasoning_content", "content"}


def test_reasoning_without_text_adds_nothing() -> None:
    silent = {"type": "reasoning", "summary": []}
    assert messages(ASKED, silent, ASKED) == messages(ASKED, ASKED)
    assert messages(silent, SAID, CALL) == messages(SAID, CALL)


def test_an_output_is_named_after_its_call() -> None:
    output = {"type": "custom_tool_call_output", "call_id": "c2", "output": "done"}
    assert messages(CUSTOM, output)[-1] == {
        "role": "tool",
        "tool_call_id": "c2",
        "content": "done",
        "name": "run",
    }


def test_calls_of_a_realtime_conversation_need_no_ids_of_items() -> None:
    found = messages_of(
        [CALL, {"type": "function_call_output", "call_id": "c1", "output": "one"}], lambda text, _use=b"": text
    )
    assert [message["role"] for message in found] == ["assistant", "tool"]
    assert found[1]["name"] == "f"


PNG = "data:image/png;base64,AAAA"


def test_media_stand_in_messages_and_outputs_where_they_stood_and_are_known_by_the_client_s_fields() -> None:
    audio = {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}}
    text = {"type": "input_text", "text": "a"}
    asked = {"role": "user", "content": [text, {"type": "input_image", "image_url": PNG, "detail": "low"}, audio]}
    shown = {"type": "input_image", "file_id": "file-1"}
    read = {"type": "input_file", "filename": "a.pdf", "file_url": "https://x.test/a.pdf", "unknown": 5}
    output = {"type": "function_call_output", "call_id": "c1", "output": [shown, read]}
    items = read_items([asked, CALL, output], Limits(), random_id)
    fields = {items[0]["id"]: "input[0]"}
    first, _, last = messages_of(items, lambda text, _use=b"": text, fields)
    assert first["content"] == [
        {"type": "text", "text": "a"},
        {"type": "image_url", "image_url": {"url": PNG, "detail": "low"}, "_field": "input[0].content[1]"},
        {**audio, "_field": "input[0].content[2]"},
    ]
    assert last["content"] == [
        {"type": "image_url", "image_url": {"file_id": "file-1", "detail": "auto"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_url": "https://x.test/a.pdf"}},
    ]


def test_media_do_not_count_as_characters_of_texts() -> None:
    limits = Limits(max_prompt_chars=100)
    picture = {"type": "input_image", "image_url": PNG}
    read_items([{"role": "user", "content": [{"type": "input_text", "text": "a"}] + [picture] * 9}], limits, random_id)


def test_sealed_reasoning_is_opened_and_a_summary_stands_for_what_is_not_there() -> None:
    sealed = {"type": "reasoning", "summary": [], "encrypted_content": "abc"}
    assert messages(sealed, SAID, unseal=str.upper)[0]["reasoning_content"] == "ABC"
    summed = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "short"}]}
    assert messages(summed, SAID)[0]["reasoning_content"] == "short"


def test_an_assistants_null_is_an_empty_answer() -> None:
    assert messages(ASKED, {"role": "assistant", "content": None}, ASKED)[1] == {"role": "assistant", "content": ""}


def test_reasoning_that_was_cut_is_still_told_as_cut_when_it_comes_back() -> None:
    (item,) = read_items([{**THOUGHT, "status": "incomplete"}], Limits(), random_id)
    assert item["status"] == "incomplete"
    assert "status" not in read_items([THOUGHT], Limits(), random_id)[0]


def test_sealed_reasoning_is_no_compacted_conversation() -> None:
    with pytest.raises(BadRequest, match="compact"):
        messages({"type": "compaction", "encrypted_content": "abc"}, unseal=lambda text, _use: text.upper())


def test_an_output_behind_a_summary_needs_no_call_as_the_summary_may_stand_for_it() -> None:
    output = {"type": "function_call_output", "call_id": "c1", "output": "one"}
    with pytest.raises(BadRequest, match="no tool call found for function_call_output with call_id c1"):
        messages(ASKED, output)
    sealed = {"type": "compaction", "encrypted_content": "abc"}
    told = messages(sealed, output, unseal=lambda _text, _use=b"": '{"said": [], "summary": "f was called."}')
    assert told[-1] == {"role": "tool", "tool_call_id": "c1", "content": "one"}


def test_nothing_is_dropped_between_a_call_and_its_output() -> None:
    output = {"type": "function_call_output", "call_id": "c1", "output": "one"}
    items = read_items([ASKED, THOUGHT, CALL, output, SAID, ASKED], Limits(), random_id)
    assert list(droppable(items)) == [1, 4, 5]


@given(st.text(max_size=300))
def test_what_is_sealed_opens_for_its_caller_alone_and_only_as_it_was(text: str) -> None:
    seal = EncryptedContent(b"s" * 32, "one")
    sealed = seal.seal(text)
    assert seal.open(sealed) == text
    assert seal.seal(text) == sealed, "a response that is made again has the same"
    assert seal.seal(text + "x")[:20] != sealed[:20]
    if len(text) > 8:
        assert text not in sealed
    strangers = (EncryptedContent(b"s" * 32, "two"), EncryptedContent(b"t" * 32, "one"))
    for opener, given_ in [(other, sealed) for other in strangers] + [(seal, sealed[:-8]), (seal, sealed + "AAAA")]:
        with pytest.raises(BadRequest):
            opener.open(given_)


@given(st.text(max_size=40))
def test_what_was_never_sealed_is_refused(text: str) -> None:
    with pytest.raises(BadRequest):
        EncryptedContent(b"s" * 32, "").open(text)


def test_ids_come_again_for_the_same_response_and_for_no_other() -> None:
    assert [Ids("a").new("msg"), Ids("a").new("msg")] == [Ids("a").new("msg")] * 2
    ids = Ids("a")
    assert len({ids.new("msg"), ids.new("msg"), Ids("b").new("msg")}) == 3
