"""One response in its client's events, from ``response.created`` to ``response.done``, in order.

Nothing here waits. The producer reports output, and ending it closes everything that is open. So a response that has
begun always gets ``response.done``, and no event after it.
"""

from collections.abc import Callable
from typing import Any, Final

from stentor.protocols.openai.realtime.given import encode_audio
from stentor.protocols.openai.realtime.items import Content, FunctionCallItem, Item, ItemStatus, MessageItem
from stentor.protocols.openai.realtime.server import (
    ArgumentsDelta,
    ArgumentsDone,
    AudioDelta,
    AudioDone,
    ContentPartAdded,
    ContentPartDone,
    EndStatus,
    ItemAdded,
    ItemDone,
    OutputItemAdded,
    OutputItemDone,
    Part,
    RateLimit,
    RateLimitsUpdated,
    Response,
    ResponseCreated,
    ResponseDone,
    ResponseUsage,
    ServerEvent,
    StatusDetails,
    TextDelta,
    TextDone,
    TranscriptDelta,
    TranscriptDone,
)

from ...responses.ids import SHORT_ID, short_id
from ..common.interfaces import Player
from ..conversation.conversation import Entry, RealtimeConversation

Emit = Callable[[ServerEvent], None]


class ResponseWriter:
    """``conversation`` None: its items belong to none. Owned by the connection."""

    def __init__(
        self,
        response: Response,
        emit: Emit,
        conversation: RealtimeConversation | None,
        player: Player | None = None,
    ) -> None:
        """``player`` plays its audio, which then has other events."""
        self.response: Final = response
        self._emit = emit
        self._conversation = conversation
        self._player = player
        self._is_audio = response.output_modalities == ["audio"]
        self._open: list[Entry] = []
        self._message: Entry | None = None
        """The message that receives text."""
        self._call: Entry | None = None
        self._places: dict[str, int] = {}
        """Indices of items in the output."""
        self._written: dict[str, list[str]] = {}
        """Texts and arguments of open items, in pieces."""
        self.has_spoken = False
        """Audio of it has been sent."""
        self.ended = False
        self.on_end: Callable[[], None] = lambda: None
        """Called once, before ``response.done``."""

    @property
    def id(self) -> str:
        return self.response.id

    def begin(self, rate_limits: list[RateLimit]) -> None:
        self._emit(ResponseCreated(response=self.response))
        self._emit(RateLimitsUpdated(rate_limits=rate_limits))

    # ---- messages

    def write(self, text: str) -> Entry:
        """More text of the model. Returns its message; after the end, a message without events."""
        if self.ended:
            return Entry(MessageItem(short_id("item"), "assistant", [], "incomplete"))
        entry = self._message or self._open_message()
        self._written[entry.item.id].append(text)
        self._tell(TranscriptDelta if self._is_audio else TextDelta, entry.item, delta=text)
        return entry

    def play(self, entry: Entry, audio: bytes) -> None:
        """More of the audio of a message."""
        if entry not in self._open:
            return
        self.has_spoken = True
        if self._player is None:
            self._tell(AudioDelta, entry.item, delta=encode_audio(audio))
        else:
            self._player.play(self.id, entry.item.id, audio)

    def leave_message(self) -> None:
        """The next text begins another message; this one stays open until :meth:`close`."""
        self._message = None

    def _open_message(self) -> Entry:
        part = Part("audio", transcript="") if self._is_audio else Part("text", "")
        entry = Entry(MessageItem(short_id("item"), "assistant", [], "in_progress"))
        self._message = entry
        self._add(entry)
        self._tell(ContentPartAdded, entry.item, part=part)
        assert isinstance(entry.item, MessageItem)
        content = Content("output_audio", transcript="") if self._is_audio else Content("output_text", text="")
        entry.item.content.append(content)
        return entry

    # ---- calls

    def call(self, name: str, call_id: str | None) -> None:
        if self.ended:
            return
        self.leave_message()
        if not call_id or len(call_id) > SHORT_ID:
            call_id = short_id("call")
        entry = Entry(FunctionCallItem(short_id("item"), call_id, name, status="in_progress"))
        self._call = entry
        self._add(entry)

    def argue(self, text: str) -> None:
        """Adds to the arguments of the last call."""
        entry = self._call
        if entry is None or not text:
            return
        item = entry.item
        assert isinstance(item, FunctionCallItem)
        self._written[item.id].append(text)
        self._tell(ArgumentsDelta, item, call_id=item.call_id, delta=text)

    def end_call(self) -> None:
        if self._call is not None:
            self.close(self._call, "completed")

    # ---- items

    def _tell(self, event: Callable[..., ServerEvent], item: Item, **fields: Any) -> None:
        """Sends an event about one of the output's items."""
        self._emit(event(response_id=self.id, item_id=item.id, output_index=self._places[item.id], **fields))

    def _add(self, entry: Entry) -> None:
        item = entry.item
        place = self._places[item.id] = len(self.response.output)
        self._open.append(entry)
        self._written[item.id] = []
        self.response.output.append(item)
        self._emit(OutputItemAdded(response_id=self.id, output_index=place, item=item))
        if self._conversation is not None:
            before = self._conversation.append(entry)
            self._emit(ItemAdded(previous_item_id=before, item=item))

    def close(self, entry: Entry, status: ItemStatus) -> None:
        """Ends an open item; does nothing for another."""
        if entry not in self._open:
            return
        self._open.remove(entry)
        item = entry.item
        text = "".join(self._written.pop(item.id))
        if isinstance(item, FunctionCallItem):
            item.arguments = text
            self._call = None
            self._tell(ArgumentsDone, item, call_id=item.call_id, name=item.name, arguments=text)
        elif isinstance(item, MessageItem):
            self._close_parts(item, text)
            if self._message is entry:
                self._message = None
        item.status = status
        if self._conversation is not None:
            self._conversation.count(entry)
            self._emit(ItemDone(previous_item_id=self._conversation.before(entry), item=item))
        self._emit(OutputItemDone(response_id=self.id, output_index=self._places[item.id], item=item))

    def _close_parts(self, item: MessageItem, text: str) -> None:
        if self._is_audio:
            item.content[0].transcript = text
            part = Part("audio", transcript=text)
            self._tell(AudioDone, item)
            self._tell(TranscriptDone, item, transcript=text)
        else:
            item.content[0].text = text
            part = Part("text", text)
            self._tell(TextDone, item, text=text)
        self._tell(ContentPartDone, item, part=part)

    def end(self, details: StatusDetails, usage: ResponseUsage | None) -> None:
        """Everything. Whatever is called afterwards does nothing."""
        if self.ended:
            return
        status: EndStatus = details.type
        for entry in list(self._open):
            self.close(entry, "completed" if status == "completed" else "incomplete")
        self.ended = True
        response = self.response
        response.status = status
        response.status_details = details
        response.usage = usage
        self.on_end()
        self._emit(ResponseDone(response=response))
