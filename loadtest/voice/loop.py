"""``stentor bench voice``: latencies of a spoken conversation: a question, the spoken answer, an interruption.

The time that counts is what a caller notices: from the last sample that was speech to the first audio of the answer,
with the silence that ends a turn within it.
"""

import argparse
import asyncio
from typing import Any, Final, NamedTuple

import msgspec
from rich.console import Console

from ..record import Record, quantile
from ..server_process import ServerProcess
from ..tool import ToolError, make_parser, run_tool
from .clips import spoken
from .realtime import RealtimeClient, Speech, session, speech_of

QUESTIONS: Final = (
    "What is the capital of France?",
    "Please tell me a short story about a dog.",
    "How many days are there in a week?",
    "Why is the sky blue?",
    "What should I cook for dinner tonight?",
)
INTERRUPTION: Final = "Wait a moment, please. I have another question."
LONGEST_ANSWER: Final = 120
"""Tokens."""
_ANSWER_SECONDS: Final = 60.0
_INTERRUPT_AFTER: Final = 1.0
"""Seconds of an answer before the caller interrupts it."""
_AUDIO: Final = "response.output_audio.delta"


class Figures(msgspec.Struct, frozen=True):
    """Of one length of silence. Seconds."""

    silence_duration_ms: int
    turns: int
    median: float
    p95: float
    slowest: float
    speech_stopped_median: float
    """From the last speech to the event that says so."""
    first_word_median: float
    """From the last speech to the first written word of the answer, which the caller's words must be known for."""
    interruptions: int
    interruption_slowest: float
    """From ``speech_started`` to the last audio of the answer; 0 where none came after it."""
    not_interrupted: int
    """Answers that had ended before somebody could interrupt them."""
    audio_events_after: int = 0
    """Of the answer, that came after ``speech_started``: the most of any interruption."""


class VoiceLoop(Record, frozen=True, kw_only=True, tag="voice"):
    server: list[str]
    aim: float
    """Seconds, of the median at the first silence."""
    results: list[Figures]


async def measure(port: int, silence_ms: int, turns: int, interruptions: int) -> Figures:
    """Raises :class:`ToolError` where an answer did not come."""
    *questions, interruption = (speech_of(clip.path, clip.text) for clip in spoken([*QUESTIONS, INTERRUPTION]))
    settings = {
        "type": "realtime",
        "instructions": "You are a helpful voice assistant. Answer in two or three sentences.",
        "max_output_tokens": LONGEST_ANSWER,
        "audio": {"input": {"turn_detection": {"type": "server_vad", "silence_duration_ms": silence_ms}}},
    }
    found: list[tuple[float, ...]] = []
    cuts: list[Cut | None] = []
    async with session(port, "", **settings) as client:
        for turn in range(turns):
            since = len(client.events)
            found.append(await _ask(client, questions[turn % len(questions)]))
            stopped, word, audio = found[-1]
            print(f"  turn {turn + 1}: ended after {stopped:.2f} s, word {word:.2f} s, audio {audio:.2f} s", flush=True)
            if turn < interruptions:
                cuts.append(await _interrupt(client, interruption))
            elif client.first("response.done", since) is None:
                await client.send(type="response.cancel")  # the rest of it tells nothing new
            await client.be_silent(lambda: _answered(client), _ANSWER_SECONDS)
    stops, words, latencies = zip(*found, strict=True)
    made = [cut for cut in cuts if cut is not None]
    return Figures(
        silence_duration_ms=silence_ms,
        turns=turns,
        median=quantile(latencies, 0.5),
        p95=quantile(latencies, 0.95),
        slowest=max(latencies),
        speech_stopped_median=quantile(stops, 0.5),
        first_word_median=quantile(words, 0.5),
        interruptions=len(made),
        interruption_slowest=max((cut.seconds for cut in made), default=0.0),
        not_interrupted=len(cuts) - len(made),
        audio_events_after=max((cut.audio_events for cut in made), default=0),
    )


async def _ask(client: RealtimeClient, question: Speech) -> tuple[float, ...]:
    """Seconds from the last speech to the end of the turn, the answer's first word, and its first audio."""
    since = len(client.events)
    spoken_at = await client.speak(question.pcm) + question.voiced_ms / 1000
    await client.be_silent(lambda: client.first(_AUDIO, since) is not None, _ANSWER_SECONDS)
    kinds = ("input_audio_buffer.speech_stopped", "response.output_audio_transcript.delta", _AUDIO)
    moments = [event.at - spoken_at for kind in kinds if (event := client.first(kind, since)) is not None]
    if len(moments) < len(kinds):
        types = [event.type for event in client.events[since:]]
        raise ToolError(f"no spoken answer to {question.text!r}: {types}, {client.error}")
    return tuple(moments)


class Cut(NamedTuple):
    """What came of an answer after the ``speech_started`` that interrupted it."""

    seconds: float
    """To its last audio; 0 where none came."""
    audio_events: int


async def _interrupt(client: RealtimeClient, speech: Speech) -> Cut | None:
    """None where the answer had ended before."""
    created = [event for event in client.events if event.type == "response.created"][-1]
    response = created.body["response"]["id"]
    await client.be_silent(lambda: False, _INTERRUPT_AFTER)
    since = len(client.events)
    await client.speak(speech.pcm)
    await client.be_silent(lambda: client.first("input_audio_buffer.speech_stopped", since) is not None, 5.0)
    done = await client.wait("response.done")
    while done.body["response"]["id"] != response:
        done = await client.wait("response.done", client.events.index(done) + 1)
    started = client.first("input_audio_buffer.speech_started", since)
    details = done.body["response"].get("status_details") or {}
    if started is None or details.get("reason") != "turn_detected":
        return None
    later = client.events[client.events.index(started) :]
    audio = [event.at for event in later if event.type == _AUDIO and event.body["response_id"] == response]
    return Cut(audio[-1] - started.at if audio else 0.0, len(audio))


def _answered(client: RealtimeClient) -> bool:
    """Every response has ended, and every turn has one."""
    kinds = [event.type for event in client.events]
    turns = kinds.count("input_audio_buffer.speech_stopped")
    return kinds.count("response.done") == kinds.count("response.created") >= turns


def main(argv: list[str]) -> int:
    """Exit code: 0 where the aims are met, else 1."""
    parser = make_parser("voice", __doc__)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--interruptions", type=int, default=5, help="of the first turns' answers")
    parser.add_argument("--silence", type=int, nargs="*", default=[200, 500], metavar="MS")
    parser.add_argument("--aim", type=float, default=1.5, metavar="SECONDS", help="of the median at the first silence")
    parser.add_argument("server", nargs="*", default=["--demo"], help="what `stentor serve` is given")
    return run_tool(parser, argv, _measure, _judge)


def _measure(args: argparse.Namespace, about: dict[str, Any]) -> VoiceLoop:
    results = []
    with ServerProcess(args.server) as server:
        for silence in args.silence:
            found = asyncio.run(measure(server.port, silence, args.turns, args.interruptions))
            results.append(found)
            print(
                f"silence {silence} ms: median {found.median:.2f} s, p95 {found.p95:.2f} s; audio went on for at most "
                f"{found.interruption_slowest * 1000:.0f} ms after {found.interruptions} interruptions",
                flush=True,
            )
    return VoiceLoop(server=["stentor", "serve", *args.server], aim=args.aim, results=results, **about)


def _judge(console: Console, record: VoiceLoop) -> int:
    met = record.results[0].median <= record.aim and all(one.interruption_slowest <= 0.2 for one in record.results)
    return 0 if met else 1
