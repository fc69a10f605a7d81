"""Interfaces of audio input, pacing and playback, called by :mod:`..connections.connection` alone.

A connection has one :class:`InputAudio`, and a :class:`Pacer` for each spoken response. All methods are called in the
connection's own task, in the order of the client's events, except :meth:`InputAudio.run`,
:meth:`CommittedAudio.transcript` and :meth:`Pacer.admit`.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from stentor.protocols.openai.realtime.session import AudioInput

from .audio_budget import AudioShare


class TokenProbability(NamedTuple):
    """One token of a transcript."""

    token: str
    logprob: float
    bytes: list[int]


class Transcript(NamedTuple):
    """The transcript of one turn."""

    text: str
    seconds: float
    """Seconds of audio, for usage."""
    logprobs: list[TokenProbability] | None = None
    """Present if the session includes them."""


class CommittedAudio(Protocol):
    """One stretch of the client's audio that has been committed."""

    @property
    def item_id(self) -> str: ...

    @property
    def duration_ms(self) -> int: ...

    @property
    def audio(self) -> bytes:
        """The audio in the session's input format; empty once dropped."""

    def forget_audio(self) -> None:
        """Drops the audio."""

    async def transcript(self) -> Transcript:
        """Waits for the transcript. Several tasks may wait; a cancelled waiter does not stop it.

        Raises BadRequest or ServerError.
        """


class SpeechStarted(NamedTuple):
    item_id: str
    """Id of the turn's item."""
    audio_start_ms: int
    """With the padding, counted from the first audio of the session."""


class SpeechStopped(NamedTuple):
    item_id: str
    audio_end_ms: int
    turn: CommittedAudio
    """Already taken out of the buffer; the connection reports the commit."""
    spoke_until: float = 0.0
    """When the last speech of the turn came, by ``time.monotonic()``."""


class TimedOut(NamedTuple):
    """There was no speech for the idle timeout."""

    item_id: str
    audio_start_ms: int
    audio_end_ms: int
    turn: CommittedAudio


SpeechEvent = SpeechStarted | SpeechStopped | TimedOut

OnPartial = Callable[[str, str, list[TokenProbability] | None], None]
"""Called with (item, more text) while a turn is transcribed; the pieces of an item join to its transcript."""
OnSpeechEvent = Callable[[SpeechEvent], None]
"""Called at once with each detected event."""


class InputAudio(Protocol):
    """The input audio buffer, turn detection and transcription of one session."""

    def check(self, input: AudioInput) -> None:
        """Raises Overloaded if there is no room for the buffer after :meth:`configure`."""

    def configure(self, input: AudioInput, *, logprobs: bool) -> None:
        """Called after every change of the session, before anything else."""

    async def room(self) -> None:
        """Returns once enough audio has been transcribed that more may come."""

    async def append(self, audio: bytes) -> list[SpeechEvent]:
        """More of the client's audio, in its format. Detected events are reported on the way, or returned.

        Raises BadRequest if the buffer would be too long, and Overloaded if all sessions together would hold too much.
        """

    def commit(self) -> CommittedAudio:
        """Takes the buffer as a turn of its own.

        Raises BadRequest (``input_audio_buffer_commit_empty``), and Overloaded.
        """

    def clear(self) -> None:
        """Forgets the buffer, and speech that had begun in it."""

    def turn_of(self, item_id: str, audio: bytes) -> CommittedAudio:
        """Audio that came whole, in an item. Raises BadRequest for more than the buffer would hold, and Overloaded."""

    def responded(self, audio_ms: float) -> None:
        """A response has ended, and its audio plays for another ``audio_ms``: the idle timeout counts from then."""

    def responding(self) -> None:
        """A response has begun: the idle timeout stops."""

    async def run(self) -> None:
        """Does the work beside the client's events, until it is cancelled."""


class Pacer(Protocol):
    """Delays audio of one response that would be too far ahead of playback."""

    async def admit(self, ms: float) -> None:
        """Waits until audio of ``ms`` milliseconds may be sent."""

    @property
    def unplayed_ms(self) -> float:
        """Admitted audio that has not been played, in ms."""


class PlayedItems(NamedTuple):
    """What a client had heard when playback stopped."""

    response_id: str | None
    """Of the audio that was playing."""
    items: Mapping[str, int]
    """Milliseconds of each item that may not have been played to its end."""


class Player(Protocol):
    """Plays the audio of responses at this end, where the transport carries sound; others are sent it in events."""

    def pacer(self, response_id: str) -> Pacer:
        """The pacer of one response."""

    def play(self, response_id: str, item_id: str, audio: bytes) -> None:
        """More of an item, as pcm at 24 kHz, behind all of its response and of those that were played before."""

    def finish(self, response_id: str) -> None:
        """Nothing more of that response comes."""

    def stop(self) -> PlayedItems:
        """Falls silent."""

    async def drained(self) -> None:
        """Waits until all has been played."""


OpenInputAudio = Callable[[OnPartial, OnSpeechEvent], InputAudio]
"""Raises BadRequest without a transcription model."""
MakePacer = Callable[[str], Pacer]
"""For the response of that id."""
OnPlayed = Callable[[str, int], None]
"""Called with an item's id, and how many milliseconds of it have been played."""
MakePlayer = Callable[[Callable[[str], None], Callable[[str], None], OnPlayed], Player]
"""Arguments: called with a response's id when its playback begins, and when it ends; and as more of an item is played.
"""


class SessionAudio(NamedTuple):
    """How a session's audio gets in and out. Either the audio of responses is paced, and the client plays it; or the
    server plays it."""

    open_input: OpenInputAudio
    make_pacer: MakePacer | None = None
    make_player: MakePlayer | None = None
    share: AudioShare | None = None
    """The session's share of audio memory; its creator closes it."""


class Sound(NamedTuple):
    """Audio of the client, received by a transport with audio."""

    pcm: bytes
    """At 24 kHz."""
