"""What a connection wants of the parts that hear, that pace and that play; :mod:`.connection` alone calls them.

A connection has one :class:`InputAudio` for as long as it lasts, and a :class:`Pacer` for each response that speaks.
All methods are called in the connection's own task, in the order in which the client's events came, but for
:meth:`InputAudio.run`, :meth:`CommittedAudio.transcript` and :meth:`Pacer.admit`.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from stentor.protocols.openai.realtime.session import AudioInput


class TokenProbability(NamedTuple):
    """One token of a transcript."""

    token: str
    logprob: float
    bytes: list[int]


class Transcript(NamedTuple):
    """What was said in one turn."""

    text: str
    seconds: float
    """Of audio that was heard, for the bill."""
    logprobs: list[TokenProbability] | None = None
    """Where the session includes them."""


class CommittedAudio(Protocol):
    """One stretch of the client's audio that has been committed."""

    @property
    def item_id(self) -> str: ...

    @property
    def duration_ms(self) -> int: ...

    @property
    def audio(self) -> bytes:
        """As the client sent it, in the session's input format; empty once it has been forgotten."""

    def forget_audio(self) -> None:
        """Nobody asks for it any more."""

    async def transcript(self) -> Transcript:
        """Waits for it. May be awaited by several, and again; what was begun goes on when a waiter is cancelled.

        Raises BadRequest or ServerError.
        """


class SpeechStarted(NamedTuple):
    item_id: str
    """Of the item that the turn will become."""
    audio_start_ms: int
    """With the padding, counted from the first audio of the session."""


class SpeechStopped(NamedTuple):
    item_id: str
    audio_end_ms: int
    turn: CommittedAudio
    """Already taken out of the buffer: the connection tells that it is committed."""
    spoke_until: float = 0.0
    """When the last speech of the turn came, by ``time.monotonic()``."""


class TimedOut(NamedTuple):
    """Nobody has said anything for the idle timeout."""

    item_id: str
    audio_start_ms: int
    audio_end_ms: int
    turn: CommittedAudio


SpeechEvent = SpeechStarted | SpeechStopped | TimedOut

OnPartial = Callable[[str, str, list[TokenProbability] | None], None]
"""Is told (item, more text) while a turn is being transcribed; pieces of an item joined are its transcript."""
OnSpeechEvent = Callable[[SpeechEvent], None]
"""Is told what was found in the audio, at once."""


class InputAudio(Protocol):
    """The input audio buffer, turn detection and transcription of one session."""

    def check(self, input: AudioInput) -> None:
        """Raises Overloaded where there is no room for what :meth:`configure` would make of the buffer."""

    def configure(self, input: AudioInput, *, logprobs: bool) -> None:
        """After every change of the session, and before anything else."""

    async def room(self) -> None:
        """Returns once so much of what came whole has been heard that more may come."""

    async def append(self, audio: bytes) -> list[SpeechEvent]:
        """More of the client's audio, in its format. What is found in it is told on the way, or returned.

        Raises BadRequest where the buffer would hold too much, and Overloaded where all sessions together would.
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
        """A response has ended whose audio is played for so long from now on: the idle timeout counts from then."""

    def responding(self) -> None:
        """A response has begun: nobody is idle."""

    async def run(self) -> None:
        """Whatever goes on beside the client's events, until it is cancelled."""


class Pacer(Protocol):
    """Holds the audio of one response back that would be too far ahead of what has been played."""

    async def admit(self, ms: float) -> None:
        """Before audio of so many milliseconds is sent."""

    @property
    def unplayed_ms(self) -> float:
        """Of audio that was admitted and has not been played yet."""


class PlayedItems(NamedTuple):
    """What a client had heard when it fell silent."""

    response_id: str | None
    """That was being played."""
    items: Mapping[str, int]
    """Milliseconds of each item that may not have been played to its end."""


class Player(Protocol):
    """Plays the audio of responses at this end, where the transport carries sound; others are sent it in events."""

    def pacer(self, response_id: str) -> Pacer:
        """For that response."""

    def play(self, response_id: str, item_id: str, audio: bytes) -> None:
        """More of an item, as pcm at 24 kHz, behind all of its response and of those that were played before."""

    def finish(self, response_id: str) -> None:
        """Nothing more of that response comes."""

    def stop(self) -> PlayedItems:
        """Falls silent."""


OpenInputAudio = Callable[[OnPartial, OnSpeechEvent], InputAudio]
"""Raises BadRequest where nothing is there to hear with."""
MakePacer = Callable[[str], Pacer]
"""For the response of that id."""
MakePlayer = Callable[[Callable[[str], None], Callable[[str], None]], Player]
"""Of who is told the id of a response when it begins to be heard, and when it has been heard to its end."""


class Sound(NamedTuple):
    """What a transport that carries sound has heard of the client."""

    pcm: bytes
    """At 24 kHz."""
