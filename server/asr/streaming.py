"""A streaming transcription model: audio goes in as it comes, and text comes out with it, token by token."""

import codecs
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import msgspec

from stentor.engine.channel.arena import ArenaFull
from stentor.engine.client.request import EngineRequest
from stentor.protocols.ipc.actors import EngineEvent, EngineReady, Finished, PromptDone, SequenceTokens
from stentor.protocols.ipc.audio import SAMPLE_BYTES, SAMPLE_RATE

from ..audio.quiet import cut_quietly
from ..common.errors import MediaFull, Unavailable, generation_error
from ..text.output.generation import EngineEventStream
from .observers import OpenAccount, RequestObserver
from .segments import Segment

if TYPE_CHECKING:
    from .turns import Turn

logger = logging.getLogger(__name__)

_FEWEST_SECONDS: Final = 0.96
"""Of audio, for which a request must have positions."""
BYTES_A_SECOND: Final = SAMPLE_RATE * SAMPLE_BYTES
MAX_STRETCH_SECONDS: Final = 600
"""Seconds of audio in one request to the engine; longer audio takes several."""


class AudioStream(EngineEventStream, Protocol):
    """A running request whose audio still arrives (:class:`stentor.engine.client.stream.RequestStream`)."""

    def append(self, pcm: bytes, *, last: bool = False) -> None:
        """Raises :class:`stentor.engine.channel.arena.ArenaFull`."""


class StreamingTranscriptionEngine(Protocol):
    """Takes requests with streamed audio; see :class:`stentor.engine.client.client.EngineClient`."""

    @property
    def ready(self) -> EngineReady | None: ...

    def submit(self, request: EngineRequest) -> AudioStream:
        """Raises :class:`stentor.engine.client.errors.EngineUnavailable` if the engine accepts no requests, and
        :class:`stentor.engine.channel.arena.ArenaFull` if there is no room for the audio."""


class TextToken(NamedTuple):
    """One token of text."""

    token: int
    bytes: bytes
    logprob: float | None
    time: float = 0.0
    """Seconds from the beginning of the audio at which it is spoken, of a model that has times."""


class Transcribed(NamedTuple):
    """What an event of the engine says."""

    positions: int
    """Those that the model has left behind since the beginning; their audio is earlier by
    :attr:`StreamForm.late`."""
    tokens: list[int]
    text: list[TextToken]
    """Those of them that have text."""


def written(
    event: SequenceTokens, token_bytes: Callable[[int], bytes], time: Callable[[int], float] = lambda place: 0.0
) -> list[TextToken]:
    """The event's tokens that have text; ``time``: when the token at a place is spoken."""
    return [
        TextToken(token, data, None if event.logprobs is None else event.logprobs[place].logprob, time(place))
        for place, token in enumerate(event.tokens)
        if (data := token_bytes(token))
    ]


class StreamForm(Protocol):
    """What requests of a model look like, and their results."""

    @property
    def step_bytes(self) -> int:
        """Bytes of one position of the engine."""

    @property
    def positions_a_second(self) -> float:
        """Of the model's encoder."""

    @property
    def has_times(self) -> bool:
        """Whether tokens say when they are spoken."""

    @property
    def late(self) -> int:
        """Positions that :meth:`read` counts before those of the audio: of what goes before it, and of a delay that
        the prompt does not have."""

    def room(self, max_len: int) -> int:
        """Bytes of audio that a request of ``max_len`` positions takes."""

    def request(self, max_len: int, language: str | None, *, logprobs: bool) -> EngineRequest:
        """A request whose audio is to come; it has what goes before the audio."""

    def after(self, size: int) -> bytes:
        """What follows the audio, of which there are ``size`` bytes."""

    def read(self, event: EngineEvent, before: int) -> Transcribed | None:
        """None: it is no part of a transcript. ``before``: the positions of the event before it."""


class StreamingTranscriptionModel(msgspec.Struct, frozen=True):
    """Shared by all requests."""

    served_names: tuple[str, ...]
    """Never empty."""
    client: StreamingTranscriptionEngine
    form: StreamForm

    @property
    def max_len(self) -> int:
        """Positions and the token after the last of them, of one request; 0 while the engine starts."""
        ready = self.client.ready
        return 0 if ready is None else ready.max_model_len

    @property
    def stretch_bytes(self) -> int:
        """Most bytes of audio in one request. Raises ``Unavailable`` if that is too little."""
        form = self.form
        room, fewest = form.room(self.max_len), round(_FEWEST_SECONDS * BYTES_A_SECOND)
        if room < fewest:
            raise Unavailable(
                f"The transcription model has {room // form.step_bytes} positions for audio, and needs "
                f"{-(-fewest // form.step_bytes)}: it is not ready, or its memory holds too little.",
                "engine_unavailable",
            )
        return min(room, MAX_STRETCH_SECONDS * BYTES_A_SECOND // form.step_bytes * form.step_bytes)


class Piece(NamedTuple):
    """New output, also for silence."""

    text: str
    tokens: list[TextToken]
    turns: "Sequence[Turn]" = ()
    """Turns of speakers that end with it, of models that tell them apart."""
    segments: Sequence[Segment] = ()
    """Of the part of the audio that ends with it, if an aligner has timed its words."""


class StreamedTranscript:
    """One request: audio in, pieces of text out. Read :meth:`pieces` once, under ``contextlib.aclosing``, while another
    task of the same event loop feeds it."""

    def __init__(
        self,
        model: StreamingTranscriptionModel,
        *,
        salt: str = "",
        name: str = "",
        language: str | None = None,
        logprobs: bool = False,
        open_account: OpenAccount | None = None,
    ) -> None:
        """Raises :class:`..common.errors.Unavailable`, :class:`..common.errors.MediaFull` and
        :class:`stentor.engine.client.errors.EngineUnavailable`."""
        self._form = model.form
        self._most = model.stretch_bytes
        self._size = 0
        self._untranscribed = bytearray()
        self._positions = 0
        self._ended = False
        self._full = False
        """Whether there was no room for its audio, which ends it."""
        self._account: RequestObserver | None = None
        request = self._form.request(model.max_len, language, logprobs=logprobs)
        if open_account is not None:
            self._account = open_account(len(request.prompt), request.params.max_tokens)
        try:
            self._stream = model.client.submit(msgspec.structs.replace(request, salt=salt, name=name))
        except BaseException as error:
            if self._account is not None:
                self._account.close("abort", "")
            if isinstance(error, ArenaFull):
                raise MediaFull from None
            raise

    # ---- the feeding task

    @property
    def size(self) -> int:
        """Bytes of audio so far."""
        return self._size

    @property
    def room(self) -> int:
        """Bytes that it may still be fed."""
        return 0 if self._ended else self._most - self._size

    @property
    def untranscribed(self) -> int:
        """Bytes for which no token has come."""
        return len(self._untranscribed)

    def feed(self, pcm: bytes) -> None:
        """At most :attr:`room` bytes. If memory runs out, :meth:`pieces` raises."""
        self._size += len(pcm)
        self._untranscribed += pcm
        self._append(pcm)

    def end(self) -> None:
        """Nothing more comes."""
        self._ended = True
        self._append(self._form.after(self._size), last=True)

    def _append(self, pcm: bytes, *, last: bool = False) -> None:
        if self._full:
            return
        try:
            self._stream.append(pcm, last=last)
        except ArenaFull:
            self._full = True
            self._stream.abort()

    def abort(self) -> None:
        self._stream.abort()

    # ---- the reading task

    @property
    def left(self) -> bytes:
        """After reading: audio for another request, because the model ended before it."""
        return b"" if self._ended else bytes(self._untranscribed)

    def _audio_positions(self, positions: int) -> int:
        """Positions of its audio, of so many that the model has left behind."""
        return max(0, positions - self._form.late)

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """Until the request ends; closing it cancels the request. Raises what
        :func:`..common.errors.generation_error` makes, and :class:`..common.errors.MediaFull`."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        account, finished = self._account, None
        try:
            async for events in self._stream:
                for event in events:
                    if (said := self._form.read(event, self._positions)) is not None:
                        if account is not None:
                            account.tokens(said.tokens)
                        audio = self._audio_positions(said.positions) - self._audio_positions(self._positions)
                        del self._untranscribed[: audio * self._form.step_bytes]
                        self._positions = said.positions
                        yield Piece(decoder.decode(b"".join(one.bytes for one in said.text)), said.text)
                    match event:
                        case PromptDone():
                            if account is not None:
                                account.prompt_done(event.cached_tokens, event.queue_seconds, event.prefill_seconds)
                        case Finished():
                            finished = event
        finally:
            if finished is None:
                self._stream.abort()
            if account is not None:
                account.close("abort" if finished is None else finished.reason, (finished and finished.message) or "")
        if self._full:
            raise MediaFull
        if finished is None or finished.reason not in ("stop", "length"):
            logger.warning("the engine could not finish a stream: %s", finished and finished.message)
            raise generation_error(finished)
        rest = decoder.decode(b"", True)
        if rest:
            yield Piece(rest, [])


class JoinedText:
    """The text of all stretches, one after the other, without white space around it."""

    def __init__(self) -> None:
        self.text = ""
        self._held = ""
        """White space that may be the last."""
        self._fresh = True

    def begin(self, space: str = " ") -> None:
        """Later text belongs to another stretch, separated by ``space``."""
        self._fresh = True
        self._held = space if self.text else ""

    def add(self, text: str) -> str:
        """New text of the transcript."""
        if self._fresh:
            text = text.lstrip()
            self._fresh = not text
        joined = self._held + text
        delta = joined.rstrip() if text else ""
        self._held = joined[len(delta) :]
        self.text += delta
        return delta


async def stream_whole(
    model: StreamingTranscriptionModel,
    pcm: bytes,
    *,
    salt: str = "",
    name: str = "",
    logprobs: bool = False,
    open_account: OpenAccount | None = None,
    owner: object = None,
) -> AsyncGenerator[Piece, None]:
    """The text of complete audio, without surrounding white space; ``owner`` is stored beside the audio.

    Raises as :class:`StreamedTranscript` and :meth:`StreamedTranscript.pieces`; iterate under ``contextlib.aclosing``.
    """
    written, begin = JoinedText(), 0
    while begin < len(pcm):
        offset = begin / BYTES_A_SECOND
        stretch = StreamedTranscript(model, salt=salt, name=name, logprobs=logprobs, open_account=open_account)
        part = cut_quietly(pcm[begin : begin + stretch.room], last=begin + stretch.room >= len(pcm))
        begin += len(part)
        stretch.feed(part)
        stretch.end()
        tokens: list[TextToken] = []
        async with aclosing(stretch.pieces()) as pieces:
            async for piece in pieces:
                tokens += [said._replace(time=said.time + offset) for said in piece.tokens]
                if delta := written.add(piece.text):
                    yield Piece(delta, tokens)
                    tokens = []
        written.begin()
