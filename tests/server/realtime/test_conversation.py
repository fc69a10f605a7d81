"""The order of items, and what a conversation may hold."""

import pytest
from msgspec import UNSET

from stentor.protocols.common.errors import BadRequest
from stentor.protocols.common.limits import Limits
from stentor.protocols.openai.realtime.given import decode_audio, encode_audio, read_item
from stentor.protocols.openai.realtime.items import Content, FunctionCallItem, FunctionCallOutputItem, Item, MessageItem
from stentor.server.api.realtime.answering.answer_generator import chat_request, whole_calls
from stentor.server.api.realtime.common.audio_budget import AudioFull, HeldAudio
from stentor.server.api.realtime.common.interfaces import Transcript
from stentor.server.api.realtime.conversation import conversation as module
from stentor.server.api.realtime.conversation.conversation import Entry, RealtimeConversation
from stentor.server.api.realtime.conversation.machine import Event
from stentor.tests.server.realtime.test_session import BEGUN
from stentor.tests.support.counting import lines_executed


class SaidTurn:
    duration_ms = 1000

    def __init__(self, item_id: str, audio: bytes) -> None:
        self.item_id = item_id
        self.audio = audio

    def forget_audio(self) -> None:
        self.audio = b""

    async def transcript(self) -> Transcript:
        return Transcript("said", 1.0)


def message(id: str, text: str = "x", role: str = "user") -> Entry:
    kind = "output_text" if role == "assistant" else "input_text"
    return Entry(MessageItem(id, role, [Content(kind, text=text)]))  # type: ignore[arg-type]  # as they are


def heard(id: str, audio: bytes) -> Entry:
    entry = Entry(MessageItem(id, "user", [Content("input_audio", transcript=None)]), SaidTurn(id, audio))
    entry.transcript = "said"
    return entry


def ids(conversation: RealtimeConversation) -> list[str]:
    return [entry.item.id for entry in conversation]


def test_items_stand_where_they_are_put() -> None:
    conversation = RealtimeConversation("conv", Limits())
    assert conversation.insert(message("b")) is None
    assert conversation.insert(message("d")) == "b"
    assert conversation.insert(message("a"), "root") is None
    assert conversation.insert(message("c"), "b") == "b"
    assert ids(conversation) == ["a", "b", "c", "d"]
    with pytest.raises(BadRequest, match="no item `e`"):
        conversation.insert(message("x"), "e")
    conversation.delete("b")
    assert ids(conversation) == ["a", "c", "d"]
    assert conversation.before(conversation.find("c", Event.RETRIEVE_ITEM)) == "a"


def test_characters_are_counted_as_items_come_change_and_go() -> None:
    conversation = RealtimeConversation("conv", Limits(max_prompt_chars=10))
    conversation.insert(message("a", "12345"))
    conversation.insert(message("b", "12345"))
    with pytest.raises(BadRequest, match="at most 10"):
        conversation.insert(message("c", "1"))
    conversation.delete("a")
    answer = message("d", "", "assistant")
    conversation.append(answer)
    assert isinstance(answer.item, MessageItem)
    answer.item.content[0].text = "12345"
    conversation.count(answer)
    with pytest.raises(BadRequest):
        conversation.check_room(1)
    conversation.delete("b")
    conversation.check_room(5)


def test_audio_that_was_said_first_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_KEPT_AUDIO", 10)
    conversation = RealtimeConversation("conv", Limits())
    for id in ("a", "b", "c"):
        conversation.append(heard(id, id.encode() * 5))
    waiting = heard("d", b"d" * 5)
    waiting.transcript = None
    conversation.append(waiting)
    conversation.forget_audio()
    kept = {entry.item.id for entry in conversation if entry.turn is not None}
    assert kept == {"c", "d"}
    item = conversation.retrieved("c")
    assert isinstance(item, MessageItem)
    assert item.content[0].audio == encode_audio(b"ccccc")
    assert conversation.retrieved("a") is conversation.find("a", Event.RETRIEVE_ITEM).item


@pytest.mark.parametrize("text", ["A", "A===", "!!!!", "AAA\n"])
def test_what_is_no_base64_is_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="base64"):
        decode_audio(text, "audio")


def test_the_model_is_told_of_whole_calls_and_of_words_alone() -> None:
    items: list[Item] = [
        FunctionCallOutputItem("1", "call_1", "early"),
        FunctionCallItem("2", "call_1", "look", "{}"),
        FunctionCallOutputItem("3", "call_1", "blue"),
        FunctionCallItem("4", "call_2", "look", '{"at', "incomplete"),
        FunctionCallOutputItem("5", "call_2", "lost"),
        MessageItem("6", "assistant", [Content("output_audio", transcript="")], "incomplete"),
        MessageItem("7", "user", [Content("input_text", text="So?"), Content("input_audio", transcript="And?")]),
    ]
    entries = [Entry(item) for item in items]
    assert [entry.item.id for entry in whole_calls(entries)] == ["2", "3", "7"]
    messages = chat_request(BEGUN, entries).messages
    assert [reported["role"] for reported in messages] == ["assistant", "tool", "user"]
    assert messages[-1]["content"] == "So?\nAnd?"


def test_a_conversation_may_be_long_without_being_slow() -> None:
    conversation = RealtimeConversation("conv", Limits())

    def insert(number: int) -> int:
        entry = message(f"item_{number}")
        return lines_executed(lambda: conversation.insert(entry))

    _, *costs = [insert(number) for number in range(1000)]
    assert min(costs) == max(costs)


PNG = "data:image/png;base64,AAAA"


def pictured(id: str, url: str = PNG) -> Entry:
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": url, "detail": "low"}]
    given = read_item({"type": "message", "role": "user", "id": id, "content": parts}, "item", Limits())
    return Entry(given.item, images=given.images)


def test_a_picture_is_told_where_its_item_is_retrieved_and_to_the_model() -> None:
    conversation = RealtimeConversation("conv", Limits())
    conversation.insert(pictured("a"))
    (entry,) = conversation
    assert isinstance(entry.item, MessageItem)
    assert entry.item.content[1] == Content("input_image", transcript=UNSET, detail="low")
    retrieved = conversation.retrieved("a")
    assert isinstance(retrieved, MessageItem)
    assert retrieved.content[1].image_url == PNG
    (message,) = chat_request(BEGUN, [entry]).messages[-1:]
    assert message["content"] == [
        {"type": "text", "text": "a"},
        {"type": "image_url", "image_url": {"url": PNG, "detail": "low"}, "_field": "a.content[1]"},
    ]


def test_pictures_are_bounded_by_conversation_and_over_all_sessions() -> None:
    held = HeldAudio(100)
    with held.share() as share:
        conversation = RealtimeConversation("conv", Limits(max_body_bytes=60), share)
        conversation.insert(pictured("a"))
        assert held.bytes == len(PNG)
        conversation.insert(pictured("b"))
        with pytest.raises(BadRequest, match="images have 78 bytes") as refused:
            conversation.insert(pictured("c"))
        assert refused.value.param == "item"
        conversation.delete("a")
        assert held.bytes == len(PNG)
        wide = RealtimeConversation("conv", Limits(), share)
        with pytest.raises(AudioFull, match="`item`"):
            wide.insert(pictured("d", PNG + "A" * 80))
