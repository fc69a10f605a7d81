"""Makes one response: runs the model, and sends its answer as text or speech."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, closing
from typing import Final, NamedTuple

import anyio
import anyio.abc
import msgspec
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from stentor.protocols.common.errors import BadRequest
from stentor.protocols.ipc.deltas import (
    Delta,
    Finish,
    PromptProcessed,
    Reasoning,
    Text,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from stentor.protocols.openai.realtime.items import ItemStatus
from stentor.protocols.openai.realtime.server import ResponseFailure, ResponseUsage, StatusDetails
from stentor.protocols.openai.realtime.session import AudioOutput, RealtimeSession

from ....audio.resample import Resampler
from ....common.errors import generation_error
from ....common.keys import Caller
from ....http.error_responses import describe
from ....overload.request_context import RequestContext
from ....tts.model import SpeechModel
from ..common.formats import Wire
from ..common.interfaces import MakePacer, Player
from ..common.services import RealtimeServices
from ..conversation.conversation import Entry, RealtimeConversation, text_of
from .answer import ResponseWriter
from .answer_generator import AnswerGenerator

PIECE_MS: Final = 200


class Piece(NamedTuple):
    audio: bytes
    """In the session's format; empty where a sentence has nothing to say."""
    ms: float
    said: str
    """The sentence that begins here; empty in the middle of one."""


async def speak(
    speech: SpeechModel, output: AudioOutput, text: AsyncIterator[str], salt: str
) -> AsyncGenerator[Piece, None]:
    """Says one message in the voice and the format of a session; ``salt`` is the caller's. Raises as the speech model
    does."""
    wire = Wire.of(output.format)
    resampler = Resampler(speech.sample_rate, wire.rate)
    async with aclosing(speech.speak(text, voice=output.voice, speed=output.speed, salt=salt)) as said:
        async for spoken in said:
            pcm = resampler.finish(spoken.pcm) if spoken.last else resampler.push(spoken.pcm)
            for piece in _cut(wire, pcm, spoken.text):
                yield piece
            if spoken.last:
                return
        for piece in _cut(wire, resampler.finish(), ""):
            yield piece


def _cut(wire: Wire, pcm: bytes, said: str) -> list[Piece]:
    step = wire.rate * PIECE_MS // 1000 * 2
    pieces = []
    for begin in range(0, len(pcm) or (1 if said else 0), step):
        part = pcm[begin : begin + step]
        pieces.append(Piece(wire.encode(part), len(part) / 2 / wire.rate * 1000, said if begin == 0 else ""))
    return pieces


_WRITTEN_AHEAD: Final = 1024
"""Pieces of text that wait for speech; beyond it, the model's output waits."""


class ResponseHost(msgspec.Struct, frozen=True):
    """Services of a connection for its responses."""

    services: RealtimeServices
    caller: Caller
    wait_for_transcript: Callable[[Entry], Awaitable[None]]
    """Waits until an item's transcript is known."""
    room: Callable[[], Awaitable[None]]
    """Waits until the client has read enough."""
    make_pacer: MakePacer
    player: Player | None = None
    """None if the client plays."""


class Responding:
    """Makes one response: :meth:`run` makes it, :meth:`cancel` ends it at once, at any point."""

    def __init__(
        self,
        host: ResponseHost,
        session: RealtimeSession,
        answer: ResponseWriter,
        entries: list[Entry],
        conversation: RealtimeConversation | None,
        *,
        answers_speech: bool = False,
    ) -> None:
        """``entries`` are its context; ``session`` has the settings of this response.

        ``answers_speech``: it was triggered by speech alone, so that an empty turn gets no answer.
        """
        self.answer: Final = answer
        self._host = host
        self._session = session
        self._entries = entries
        self._untranscribed = [entry for entry in entries if entry.waits]
        self._conversation = conversation
        self._pacer = host.make_pacer(answer.id)
        self._answers_speech = answers_speech
        self._scope = anyio.CancelScope()
        self._given = self._cached = self._output = 0
        self._asked = False
        self._finish: Finish | None = None

    @property
    def usage(self) -> ResponseUsage | None:
        return ResponseUsage.of(self._given, self._cached, self._output) if self._asked else None

    @property
    def unplayed_ms(self) -> float:
        """Sent audio that has not been played, in ms."""
        return self._pacer.unplayed_ms

    @property
    def speech(self) -> SpeechModel | None:
        """Speaks the answer; None for text."""
        return self._host.services.speech if self._session.output_modalities == ["audio"] else None

    @property
    def salt(self) -> str:
        """Of the caller's part of prefix caches."""
        return self._host.caller.salt

    def cancel(self, details: StatusDetails) -> None:
        """Tells of its end before this returns."""
        self.answer.end(details, self.usage)
        self._scope.cancel()

    async def run(self) -> None:
        """Raises nothing but cancellation from outside; the answer has ended in every case."""
        try:
            with self._scope:
                self.answer.end(await self._make(), self.usage)
        except Exception as error:
            self.answer.end(_failed(error), self.usage)
        finally:
            self.answer.end(StatusDetails("cancelled", "client_cancelled"), self.usage)

    async def _make(self) -> StatusDetails:
        for entry in self._untranscribed:
            await self._host.wait_for_transcript(entry)
        if self._answers_speech and not text_of(self._entries[-1]).strip():
            return StatusDetails("completed")
        with self._host.services.admission.admit() as context:
            await self._say(context)
        if self._finish is None or self._finish.reason not in ("stop", "length"):
            raise generation_error(self._finish)
        if self._finish.reason == "length":
            return StatusDetails("incomplete", "max_output_tokens")
        return StatusDetails("completed")

    async def _say(self, context: RequestContext) -> None:
        failure: Exception | None = None
        async with anyio.create_task_group() as tasks:
            with closing(_Messages(self, tasks)) as messages:
                try:
                    with context.bounded():  # which does not bound the speech
                        await self._generate(messages, context)
                    cut = self._finish is not None and self._finish.reason == "length"
                    await messages.leave("incomplete" if cut else "completed")
                except Exception as error:  # not from within a task group, which would wrap it
                    failure = error
                    tasks.cancel_scope.cancel()
        failure = messages.failure or failure
        if failure is not None:
            raise failure

    async def _generate(self, messages: "_Messages", context: RequestContext) -> None:
        asking = AnswerGenerator(self._host.services.chat, self._host.caller, self._session)
        turn = await asking.turn(self._entries, self._conversation, context)
        self._asked = True
        self._given = len(turn.prompt)
        async with aclosing(turn.batches):
            async for batch in turn.batches:
                for delta in batch:
                    await self._take(delta, messages)
                await self._host.room()

    async def _take(self, delta: Delta, messages: "_Messages") -> None:
        answer = self.answer
        match delta:
            case Text():
                self._output += len(delta.tokens)
                if delta.text:
                    await messages.write(delta.text)
            case Reasoning():
                self._output += len(delta.tokens)
            case PromptProcessed():
                self._cached = delta.cached_tokens
            case ToolCallStart():
                await messages.leave("completed")
                answer.call(delta.name, delta.id)
            case ToolCallArguments():
                answer.argue(delta.text)
            case ToolCallEnd():
                answer.end_call()
            case Finish():
                self._finish = delta

    # ---- for the speech model

    async def play(self, entry: Entry, said: str, audio: bytes, ms: float) -> None:
        """Sends audio of a message; ``said`` is the sentence that begins with it, or empty."""
        await self._pacer.admit(ms)
        await self._host.room()
        entry.spoken.add(said, ms)
        if audio:
            self.answer.play(entry, audio)

    @property
    def audio_output(self) -> AudioOutput:
        return self._session.audio.output


class _Messages:
    """The messages of one response: text goes out as it comes, and to the speech model."""

    def __init__(self, responding: Responding, tasks: anyio.abc.TaskGroup) -> None:
        self._responding = responding
        self._tasks = tasks
        self._entry: Entry | None = None
        self._said: MemoryObjectSendStream[str] | None = None
        self._before: anyio.Event | None = None
        """The message before has been spoken to its end."""
        self._ends: dict[str, ItemStatus] = {}
        """How items end that are still being spoken."""
        self.failure: Exception | None = None

    def close(self) -> None:
        if self._said is not None:
            self._said.close()

    async def write(self, text: str) -> None:
        self._entry = self._responding.answer.write(text)
        speech = self._responding.speech if self._said is None else None
        if speech is not None:
            self._said, written = anyio.create_memory_object_stream[str](_WRITTEN_AHEAD)
            done, before = anyio.Event(), self._before
            self._before = done
            self._tasks.start_soon(self._speak, speech, self._entry, written, before, done)
        if self._said is not None:
            await self._said.send(text)

    async def leave(self, status: ItemStatus) -> None:
        """The message has all its text; it ends at once, or when it has been spoken."""
        entry, said = self._entry, self._said
        self._entry = self._said = None
        if entry is None:
            return
        self._responding.answer.leave_message()
        if said is None:
            self._responding.answer.close(entry, status)
        else:
            self._ends[entry.item.id] = status
            await said.aclose()

    async def _speak(
        self,
        speech: SpeechModel,
        entry: Entry,
        text: MemoryObjectReceiveStream[str],
        before: anyio.Event | None,
        done: anyio.Event,
    ) -> None:
        try:
            with text:
                if before is not None:
                    await before.wait()
                said = speak(speech, self._responding.audio_output, text, self._responding.salt)
                async with aclosing(said) as pieces:
                    async for piece in pieces:
                        await self._responding.play(entry, piece.said, piece.audio, piece.ms)
            self._responding.answer.close(entry, self._ends.get(entry.item.id, "completed"))
        except Exception as error:
            self.failure = self.failure or error
            self._tasks.cancel_scope.cancel()
        finally:
            done.set()


def _failed(error: Exception) -> StatusDetails:
    _, body = describe(error)
    kind = "invalid_request_error" if isinstance(error, BadRequest) else body.type
    return StatusDetails("failed", error=ResponseFailure(kind, body.code, body.message))
