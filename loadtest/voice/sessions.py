"""``stentor bench callers``: many callers at once, each transcribed while it speaks, at the speed of speech.

Every session speaks a few sentences, commits them the moment they end, and goes on with the next at once. What counts
is the time from the commit to the final transcript, how often partial transcripts come, whether anything is left over,
and the server's memory.
"""

import argparse
import asyncio
import contextlib
import random
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import msgspec
from rich.console import Console

from ..processes import pss_bytes, tree
from ..record import Record, quantile
from ..server_process import ServerProcess
from ..tool import ToolError, make_parser, run_tool
from .clips import SENTENCES, spoken
from .realtime import RATE, Event, session, speech_of
from .transcription import Normalizer, WordErrors, word_errors

DELTA: Final = "conversation.item.input_audio_transcription.delta"
COMPLETED: Final = "conversation.item.input_audio_transcription.completed"
_MEMORY_SECONDS: Final = 5.0
_PAUSE: Final = bytes(2 * RATE * 3 // 10)


class Sessions(Record, frozen=True, kw_only=True, tag="callers"):
    server: list[str]
    sessions: int
    sentences: int
    """In one turn."""
    seconds: float
    aim: float
    """Of the figure ``lag_p95``."""
    figures: dict[str, Any]
    """What :func:`measure` found."""


class Callers:
    """What callers say, and what all of them saw."""

    def __init__(self, at_once: int, seconds: float) -> None:
        self._sentences = [speech_of(clip.path, clip.text) for clip in spoken(SENTENCES, natural=False)]
        self._normalizer = Normalizer()
        self._at_once = at_once
        self._seconds = seconds
        self.lags: list[float] = []
        self.firsts: list[float] = []
        self.intervals: list[float] = []
        self.commits = self.partials = self.unfinished = self.failed = 0
        self.errors = WordErrors(0, 0)

    async def call(self, port: int, number: int) -> None:
        """One session. Raises :class:`ToolError` where deltas do not join to their transcript."""
        draw = random.Random(number)
        audio_input = {"transcription": {"language": "en"}, "turn_detection": None}
        turns: list[tuple[str, float, float]] = []  # what is said, when it begins, when it is committed
        async with session(port, "intent=transcription", type="transcription", audio={"input": audio_input}) as client:
            await asyncio.sleep(draw.uniform(0, 4))  # not all at once
            end = time.monotonic() + self._seconds
            while time.monotonic() < end:
                said = draw.sample(self._sentences, self._at_once)
                begin = await client.speak(_PAUSE.join(speech.pcm for speech in said))
                await client.send(type="input_audio_buffer.commit")
                turns.append((" ".join(speech.text for speech in said), begin, time.monotonic()))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(20):
                    while sum(event.type == COMPLETED for event in client.events) < len(turns):
                        await asyncio.sleep(0.05)
        items = [event.body["item_id"] for event in client.events if event.type == "input_audio_buffer.committed"]
        self.commits += len(turns)
        self.unfinished += len(turns) - len(items)
        self.failed += sum(event.type == "error" or event.type.endswith(".failed") for event in client.events)
        for item, turn in zip(items, turns, strict=False):
            self._look([event for event in client.events if event.body.get("item_id") == item], *turn)

    def _look(self, events: Sequence[Event], text: str, begin: float, committed: float) -> None:
        """At the events of one turn."""
        early = [event.at for event in events if event.type == DELTA and event.at < committed]
        self.partials += len(early)
        self.firsts += [at - begin for at in early[:1]]
        self.intervals += [after - before for before, after in pairwise(early)]
        done = next((event for event in events if event.type == COMPLETED), None)
        if done is None:
            self.unfinished += 1
            return
        self.lags.append(done.at - committed)
        transcript = done.body["transcript"]
        self.errors += word_errors(self._normalizer.words(text), self._normalizer.words(transcript))
        deltas = "".join(event.body["delta"] for event in events if event.type == DELTA)
        if deltas != transcript:
            raise ToolError(f"deltas do not join to the transcript: {deltas!r}, {transcript!r}")


async def measure(server: ServerProcess, sessions: int, seconds: float, at_once: int = 1) -> dict[str, Any]:
    """The figures, by name; times are in seconds."""
    seen = Callers(at_once, seconds)
    memory: list[int] = []
    watching = asyncio.create_task(_watch(server.pid, memory))
    try:
        await asyncio.gather(*(seen.call(server.port, number) for number in range(sessions)))
    finally:
        watching.cancel()
    return {
        "commits": seen.commits,
        # from the commit to the final transcript
        "lag_p50": quantile(seen.lags, 0.5),
        "lag_p95": quantile(seen.lags, 0.95),
        "lag_slowest": max(seen.lags),
        # commits without a transcript a while after the end
        "unfinished": seen.unfinished,
        "failed": seen.failed,
        # deltas before the commit of their turn, between two of one turn, and from its beginning to the first
        "partials": seen.partials,
        "partial_interval_p50": quantile(seen.intervals or [0.0], 0.5),
        "first_partial_p50": quantile(seen.firsts or [0.0], 0.5),
        "word_error_rate": round(seen.errors.rate, 4),
        # of all processes, every few seconds
        "memory_mib": memory,
    }


async def _watch(pid: int, memory: list[int]) -> None:
    while True:
        memory.append(sum(map(pss_bytes, tree(pid))) >> 20)
        await asyncio.sleep(_MEMORY_SECONDS)


def main(argv: list[str]) -> int:
    """Exit code: 0 where the aim is met, else 1."""
    parser = make_parser("callers", __doc__)
    parser.add_argument("--sessions", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--sentences", type=int, default=3, help="of one turn")
    parser.add_argument("--aim", type=float, default=2.0, metavar="SECONDS", help="of the lag's 95th percentile")
    parser.add_argument("server", nargs="*", default=["--demo"], help="what `stentor serve` is given")
    return run_tool(parser, argv, _measure, _judge)


def _measure(args: argparse.Namespace, about: dict[str, Any]) -> Sessions:
    with ServerProcess(args.server) as server:
        found = asyncio.run(measure(server, args.sessions, args.seconds, args.sentences))
    print(msgspec.json.format(msgspec.json.encode(found), indent=1).decode())
    options = {"sessions": args.sessions, "sentences": args.sentences, "seconds": args.seconds, "aim": args.aim}
    return Sessions(server=["stentor", "serve", *args.server], figures=found, **options, **about)


def _judge(console: Console, record: Sessions) -> int:
    found = record.figures
    return 0 if found["lag_p95"] <= record.aim and not found["unfinished"] and not found["failed"] else 1
