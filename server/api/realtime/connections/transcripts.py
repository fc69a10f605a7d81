"""Transcripts of the items of one connection: each is waited for, noted in its item, and told."""

import math
from collections.abc import Callable
from typing import Final

from stentor.protocols.openai.realtime import server as server_events
from stentor.protocols.openai.realtime.items import MessageItem
from stentor.protocols.openai.realtime.session import Session

from ....http.error_responses import describe
from ..answering.answer import Emit
from ..answering.response_manager import Start
from ..common.interfaces import TokenProbability, Transcript
from ..conversation.conversation import Entry, RealtimeConversation


class ItemTranscripts:
    """Belongs to the connection, whose conversation it changes."""

    def __init__(
        self, conversation: RealtimeConversation, session: Callable[[], Session], emit: Emit, start: Start
    ) -> None:
        """``session`` gives the current settings; ``start`` begins a task of the connection."""
        self._conversation: Final = conversation
        self._session: Final = session
        self._emit: Final = emit
        self._start: Final = start

    @property
    def _tells(self) -> bool:
        return self._session().audio.input.transcription is not None

    def begin(self, entry: Entry) -> None:
        """Does nothing for an item without audio."""
        if entry.turn is not None:
            tells = self._tells
            self._start(lambda: self._transcribe_and_emit(entry, tells))

    async def _transcribe_and_emit(self, entry: Entry, tells: bool) -> None:
        id = entry.item.id
        try:
            transcript = await self._transcript(entry)
        except Exception as error:
            _, body = describe(error)
            if tells:
                failure = server_events.TranscriptionError(body.type, body.code, body.message, body.param)
                self._emit(server_events.TranscriptionFailed(item_id=id, content_index=_place(entry), error=failure))
            return
        finally:
            self._conversation.forget_audio()
        if tells and transcript is not None:
            event = server_events.TranscriptionCompleted(
                item_id=id,
                content_index=_place(entry),
                transcript=transcript.text,
                usage=server_events.DurationUsage(transcript.seconds),
            )
            if self._session().include and transcript.logprobs is not None:
                event.logprobs = _logprobs(transcript.logprobs)
            item = entry.item
            assert isinstance(item, MessageItem)
            item.content[_place(entry)].transcript = transcript.text
            self._emit(event)

    async def _transcript(self, entry: Entry) -> Transcript | None:
        """The transcript of an item, noted in it; None if it needs no transcription."""
        if entry.turn is None:
            return None
        try:
            transcript = await entry.turn.transcript()
        except Exception as error:
            entry.failure = error
            raise
        entry.transcript = transcript.text
        self._conversation.count(entry)
        return transcript

    async def wait(self, entry: Entry) -> None:
        """Waits for an item's transcript. Raises as :meth:`..common.interfaces.CommittedAudio.transcript` does."""
        if entry.failure is not None:
            raise entry.failure
        if entry.waits:
            await self._transcript(entry)

    def tell_partial(self, item_id: str, delta: str, logprobs: list[TokenProbability] | None) -> None:
        """More of the transcript of a turn that is still spoken."""
        if self._tells and delta:
            event = server_events.TranscriptionDelta(item_id=item_id, delta=delta)
            if self._session().include and logprobs is not None:
                event.logprobs = _logprobs(logprobs)
            self._emit(event)


def _place(entry: Entry) -> int:
    """Index of the audio part."""
    item = entry.item
    assert isinstance(item, MessageItem)
    return next(place for place, part in enumerate(item.content) if part.type == "input_audio")


def _logprobs(tokens: list[TokenProbability]) -> list[server_events.TokenLogprob]:
    return [
        server_events.TokenLogprob(one.token, one.logprob, one.bytes) for one in tokens if math.isfinite(one.logprob)
    ]
