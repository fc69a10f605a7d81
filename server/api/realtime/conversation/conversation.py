"""The items of one conversation: their order, their audio, and the model's view of them.

An item has one place, and every event about it names the item before it. Items, their characters, and stored audio are
bounded.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import UNSET

from stentor.protocols.common.errors import BadRequest, refused, wrong
from stentor.protocols.common.limits import Limits
from stentor.protocols.openai.realtime.given import encode_audio
from stentor.protocols.openai.realtime.items import Content, FunctionCallItem, FunctionCallOutputItem, Item, MessageItem

from ..common.audio_budget import AudioShare, unbounded
from ..common.interfaces import CommittedAudio
from .machine import Event
from .pacing import SpokenText

ROOT: Final = "root"
DUPLICATE_ITEM: Final = "item_create_duplicate_item_id"
_CODES: Final = {
    Event.CREATE_ITEM: "item_create_invalid_previous_item_id",
    Event.RETRIEVE_ITEM: "item_retrieve_invalid_item_id",
    Event.DELETE_ITEM: "item_delete_invalid_item_id",
    Event.TRUNCATE_ITEM: "item_truncate_invalid_item_id",
}
"""Error codes for a missing item, by the request; clients match these."""
MAX_KEPT_AUDIO: Final = 4 << 20
"""Bytes of the client's audio that a conversation stores; the oldest is dropped first."""


class Entry(msgspec.Struct, eq=False):
    """One item, with internal state."""

    item: Item
    turn: CommittedAudio | None = None
    """The client's audio, until it is dropped."""
    transcript: str | None = None
    """Its transcript, once known."""
    failure: Exception | None = None
    """Why it could not be transcribed."""
    spoken: SpokenText = msgspec.field(default_factory=SpokenText)
    """The part of an answer's audio that was sent."""
    counted: int = 0
    """Characters of it that its conversation has counted."""
    images: Mapping[int, str] = msgspec.field(default_factory=dict)
    """URLs of its pictures, by the places of their parts; they have been checked."""

    @property
    def open(self) -> bool:
        return self.item.status == "in_progress"

    @property
    def size(self) -> int:
        """Characters."""
        match self.item:
            case MessageItem(content=content):
                shown = sum(len(part.text or "") + len(part.transcript or "") for part in content)
                return shown + len(self.transcript or "")
            case FunctionCallItem():
                return len(self.item.name) + len(self.item.arguments)
            case FunctionCallOutputItem():
                return len(self.item.output)

    @property
    def image_chars(self) -> int:
        return sum(map(len, self.images.values()))

    @property
    def waits(self) -> bool:
        """Whether its transcript is still missing."""
        return self.turn is not None and self.transcript is None and self.failure is None


class RealtimeConversation:
    """Owned by the connection, which alone changes it."""

    def __init__(self, id: str, limits: Limits, share: AudioShare | None = None) -> None:
        self.id: Final = id
        self._share = share or unbounded()
        self._audio = self._share.hold()
        """The client's audio in items."""
        self._pictures = self._share.hold()
        """Likewise."""
        self._limits = limits
        self._entries: list[Entry] = []
        self._by_id: dict[str, Entry] = {}
        self._chars = 0
        self._dropped: set[str] = set()
        """Items that were truncated for lack of room."""

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries)

    # ---- what clients do to it

    def insert(self, entry: Entry, previous: str | None = None) -> str | None:
        """Puts an item behind ``previous``, before all others (``root``), or at the end.

        Returns the id of the item before it. Raises BadRequest.
        """
        place = self.check_insert(entry, previous)
        self._entries.insert(place, entry)
        self._enter(entry)
        return self.before(entry)

    def check_insert(self, entry: Entry, previous: str | None = None) -> int:
        """The place that :meth:`insert` would give it. Raises BadRequest."""
        if entry.item.id in self._by_id:
            shown = entry.item.id[:80]
            raise refused("item.id", f"there is an item `{shown}` already", DUPLICATE_ITEM)
        if isinstance(entry.item, FunctionCallOutputItem):
            self._check_call(entry.item)
        self.check_room(entry.size, entry.image_chars)
        if previous == ROOT:
            return 0
        if previous is None:
            return len(self._entries)
        return self._entries.index(self.find(previous, Event.CREATE_ITEM, "previous_item_id")) + 1

    def append(self, entry: Entry) -> str | None:
        """Puts an item of the session itself at the end, without a limit. Returns the id of the item before it."""
        before = self.last
        self._entries.append(entry)
        self._enter(entry)
        return before

    def _enter(self, entry: Entry) -> None:
        self._by_id[entry.item.id] = entry
        self.count(entry)
        self._pictures.set(self._pictures.bytes + entry.image_chars)
        if entry.turn is not None:
            self._audio.set(self._audio.bytes + len(entry.turn.audio))

    def count(self, entry: Entry) -> None:
        """Counts the entry anew; to be called whenever its text or audio changes."""
        if self._by_id.get(entry.item.id) is entry:
            self._chars += entry.size - entry.counted
            entry.counted = entry.size

    def _check_call(self, output: FunctionCallOutputItem) -> None:
        calls = (entry.item for entry in self._entries if isinstance(entry.item, FunctionCallItem))
        if all(call.call_id != output.call_id for call in calls):
            raise refused(
                "item.call_id", f"the conversation has no call `{output.call_id[:80]}`", "invalid_tool_call_id"
            )

    def check_room(self, chars: int = 0, image_chars: int = 0) -> None:
        """Raises BadRequest where the conversation is as long as it may be, and AudioFull."""
        limits = self._limits
        if len(self._entries) >= limits.max_messages:
            raise BadRequest(
                f"The conversation has {len(self._entries)} items, as many as this server allows; delete some.",
                "item",
                "array_above_max_length",
            )
        length = self._chars + chars
        if length > limits.max_prompt_chars:
            raise BadRequest(
                f"The conversation has {length} characters; this server allows at most {limits.max_prompt_chars}: "
                "delete some items.",
                "item",
                "string_above_max_length",
            )
        if image_chars:
            held = self._pictures.bytes + image_chars
            if held > limits.max_body_bytes:
                raise BadRequest(
                    f"The conversation's images have {held} bytes; this server allows at most {limits.max_body_bytes}: "
                    "delete some items.",
                    "item",
                    "string_above_max_length",
                )
            self._share.check(image_chars, "item")

    def find(self, id: str, asked: Event, field: str = "item_id") -> Entry:
        """The item that ``asked`` names in ``field``. Raises BadRequest."""
        entry = self._by_id.get(id)
        if entry is None:
            code = _CODES.get(asked, "item_not_found")
            raise refused(field, f"the conversation has no item `{id[:80]}`", code)
        return entry

    def before(self, entry: Entry) -> str | None:
        """The id of the item in front of it."""
        place = self._entries.index(entry)
        return self._entries[place - 1].item.id if place else None

    @property
    def last(self) -> str | None:
        """The id of the item at the end."""
        return self._entries[-1].item.id if self._entries else None

    def delete(self, id: str) -> None:
        """Raises BadRequest, also for an item that is still being made."""
        entry = self.find(id, Event.DELETE_ITEM)
        if entry.open:
            raise refused(
                "item_id", f"the item `{id[:80]}` is still being made; cancel its response first", "item_in_progress"
            )
        self._entries.remove(entry)
        del self._by_id[id]
        self._chars -= entry.counted
        self._dropped.discard(id)
        self._pictures.set(self._pictures.bytes - entry.image_chars)
        self._forget_audio_of(entry)

    def spoken_answer(self, id: str) -> Entry | None:
        """The item of that id, if it is a complete answer with audio."""
        entry = self._by_id.get(id)
        if entry is None or entry.open or not isinstance(entry.item, MessageItem):
            return None
        content = entry.item.content
        return entry if content and content[0].type == "output_audio" else None

    def spoken_until(self, id: str, ms: int) -> str:
        """The text that the first ``ms``, rounded down, of an answer's audio speak; empty for an item that is not
        there."""
        entry = self._by_id.get(id)
        return "" if entry is None else entry.spoken.until(ms + 1)

    def check_truncate(self, id: str, content_index: int) -> Entry:
        """The item whose audio :meth:`truncate` would shorten. Raises BadRequest without one."""
        entry = self.find(id, Event.TRUNCATE_ITEM)
        item = entry.item
        if not isinstance(item, MessageItem) or item.role != "assistant":
            raise refused("item_id", "only messages of the assistant can be truncated", "invalid_value")
        if content_index >= len(item.content):
            raise refused("content_index", f"the item has {len(item.content)} parts", "invalid_value")
        part = item.content[content_index]
        if part.type != "output_audio":
            raise refused("content_index", "this part is no audio", "invalid_value")
        return entry

    def truncate(self, id: str, content_index: int, audio_end_ms: int) -> None:
        """Truncates an answer's audio, and its transcript to match. Raises BadRequest.

        The item must be complete: the rest of an open response would follow.
        """
        entry = self.check_truncate(id, content_index)
        item = entry.item
        assert isinstance(item, MessageItem)
        assert not entry.open
        part = item.content[content_index]
        lasts = math.ceil(entry.spoken.duration_ms)
        if audio_end_ms > lasts:
            raise wrong("audio_end_ms", f"is {audio_end_ms}, and the audio has {lasts} ms", "invalid_value")
        part.transcript = entry.spoken.until(audio_end_ms)
        entry.spoken = SpokenText()
        entry.spoken.add(part.transcript, audio_end_ms)
        self.count(entry)

    # ---- audio

    def forget_audio(self) -> None:
        """Drops audio beyond the limit, of items whose transcripts are known."""
        for entry in self._entries:
            if self._audio.bytes <= MAX_KEPT_AUDIO:
                return
            if entry.turn is not None and not entry.waits:
                self._forget_audio_of(entry)
                entry.turn = None

    def _forget_audio_of(self, entry: Entry) -> None:
        if entry.turn is not None:
            self._audio.set(self._audio.bytes - len(entry.turn.audio))
            entry.turn.forget_audio()

    def retrieved(self, id: str) -> Item:
        """The item with the audio that is still there. Raises BadRequest."""
        entry = self.find(id, Event.RETRIEVE_ITEM)
        item = entry.item
        if not isinstance(item, MessageItem) or (entry.turn is None and not entry.images):
            return item
        content = [_with_media(part, entry, place) for place, part in enumerate(item.content)]
        return msgspec.structs.replace(item, content=content)

    # ---- what the model sees

    def entries_for_model(self) -> list[Entry]:
        """Completed items, without truncated ones."""
        return [entry for entry in self._entries if entry.item.id not in self._dropped and not entry.open]

    def drop(self, entries: Sequence[Entry]) -> None:
        """The model does not see them any more."""
        self._dropped.update(entry.item.id for entry in entries)


def text_of(entry: Entry) -> str:
    """A message's text, whatever its parts."""
    item = entry.item
    assert isinstance(item, MessageItem)
    return "\n".join(text for part in item.content if (text := _said(part, entry)))


def parts_of(entry: Entry) -> list[str | tuple[str, str, int]]:
    """A message with pictures, in order: texts, and of each picture its URL, its detail and the place of its part."""
    item = entry.item
    assert isinstance(item, MessageItem)
    found: list[str | tuple[str, str, int]] = []
    for place, part in enumerate(item.content):
        if place in entry.images:
            found.append((entry.images[place], part.detail or "auto", place))
        elif text := _said(part, entry):
            found.append(text)
    return found


def _said(part: Content, entry: Entry) -> str:
    said = part.text if part.text is not UNSET else part.transcript
    if part.type == "input_audio" and entry.transcript is not None:
        said = entry.transcript
    return said if isinstance(said, str) else ""


def _with_media(part: Content, entry: Entry, place: int) -> Content:
    if part.type == "input_audio" and entry.turn is not None:
        return msgspec.structs.replace(part, audio=encode_audio(entry.turn.audio))
    if place in entry.images:
        return msgspec.structs.replace(part, image_url=entry.images[place])
    return part
