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
from typing import Any, Final, Literal

import msgspec
from rich.console import Console

from ..processes import pss_bytes, tree
from ..record import Record, quantile
from ..server_process import ServerProcess
from ..tool import ToolError, make_parser, run_tool
from .clips import spoken
from .realtime import RATE, RealtimeClient, Speech, session, speech_of
from .sentences import SENTENCES
from .wer import Normalizer, WordErrors, word_errors

DELTA: Final = "conversation.item.input_audio_transcription.delta"
COMPLETED: Final = "conversation.item.input_audio_transcription.completed"
_MEMORY_SECONDS: Final = 5.0
_PAUSE: Final = bytes(2 * RATE * 3 // 10)


class Sessions(Record, frozen=True, kw_only=True):
    """Seconds unless named otherwise."""

    kind: Literal["callers"] = "callers"
    server: list[str]
    sessions: int
    sentences: int
    """In one turn."""
    seconds: float
    commits: int
    lag_p50: float
    """From the commit to the final transcript."""
    lag_p95: float
    lag_slowest: float
    unfinished: int
    """Commits without a transcript a while after the end."""
    failed: int
    partials: int
    """Deltas before the commit of their turn."""
    partial_interval_p50: float
    """Between two of one turn."""
    first_partial_p50: float
    """From the beginning of a turn to its first."""
    word_error_rate: float
    memory_mib: list[int]
    """Of all processes, every few seconds."""
    aim: float
    """Of ``lag_p95``."""


class Seen:
    """What all callers saw."""

    def __init__(self) -> None:
        self.lags: list[float] = []
        self.firsts: list[float] = []
        self.intervals: list[float] = []
        self.commits = self.partials = self.unfinished = self.failed = 0
        self.errors = WordErrors(0, 0)


async def call(
    port: int,
    number: int,
    sentences: Sequence[Speech],
    at_once: int,
    seconds: float,
    normalizer: Normalizer,
    seen: Seen,
) -> None:
    """One session; adds to ``seen``. Raises :class:`ToolError` where deltas do not join to their transcript."""
    draw = random.Random(number)
    settings = {
        "type": "transcription",
        "audio": {"input": {"transcription": {"language": "en"}, "turn_detection": None}},
    }
    turns: list[tuple[str, float, float]] = []  # what is said, when it begins, when it is committed
    async with session(port, "intent=transcription", **settings) as client:
        await asyncio.sleep(draw.uniform(0, 4))  # not all at once
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            said = draw.sample(sentences, at_once)
            begin = await client.speak(_PAUSE.join(speech.pcm for speech in said))
            await client.send(type="input_audio_buffer.commit")
            turns.append((" ".join(speech.text for speech in said), begin, time.monotonic()))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(20):
                while sum(event.type == COMPLETED for event in client.events) < len(turns):
                    await asyncio.sleep(0.05)
    seen.commits += len(turns)
    seen.failed += sum(event.type == "error" or event.type.endswith(".failed") for event in client.events)
    items = [event.body["item_id"] for event in client.events if event.type == "input_audio_buffer.committed"]
    seen.unfinished += len(turns) - len(items)
    for item, turn in zip(items, turns, strict=False):
        _look(client, item, *turn, normalizer, seen)


def _look(
    client: RealtimeClient, item: str, text: str, begin: float, committed: float, normalizer: Normalizer, seen: Seen
) -> None:
    mine = [event for event in client.events if event.body.get("item_id") == item]
    early = [event.at for event in mine if event.type == DELTA and event.at < committed]
    seen.partials += len(early)
    seen.firsts += [at - begin for at in early[:1]]
    seen.intervals += [after - before for before, after in pairwise(early)]
    done = next((event for event in mine if event.type == COMPLETED), None)
    if done is None:
        seen.unfinished += 1
        return
    seen.lags.append(done.at - committed)
    heard = done.body["transcript"]
    seen.errors += word_errors(normalizer.words(text), normalizer.words(heard))
    told = "".join(event.body["delta"] for event in mine if event.type == DELTA)
    if told != heard:
        raise ToolError(f"deltas do not join to the transcript: {told!r}, {heard!r}")


async def measure(server: ServerProcess, sessions: int, seconds: float, at_once: int = 1) -> dict[str, Any]:
    """The figures, by name."""
    sentences = [speech_of(clip.path, clip.text) for clip in spoken(SENTENCES, natural=False)]
    normalizer, seen = Normalizer(), Seen()
    memory: list[int] = []
    watching = asyncio.create_task(_watch(server.pid, memory))
    calls = (call(server.port, number, sentences, at_once, seconds, normalizer, seen) for number in range(sessions))
    try:
        await asyncio.gather(*calls)
    finally:
        watching.cancel()
    return {
        "commits": seen.commits,
        "lag_p50": quantile(seen.lags, 0.5),
        "lag_p95": quantile(seen.lags, 0.95),
        "lag_slowest": max(seen.lags),
        "unfinished": seen.unfinished,
        "failed": seen.failed,
        "partials": seen.partials,
        "partial_interval_p50": quantile(seen.intervals or [0.0], 0.5),
        "first_partial_p50": quantile(seen.firsts or [0.0], 0.5),
        "word_error_rate": round(seen.errors.rate, 4),
        "memory_mib": memory,
    }


async def _watch(pid: int, memory: list[int]) -> None:
    while True:
        total = 0
        for each in tree(pid):
            with contextlib.suppress(OSError):
                total += pss_bytes(each)
        memory.append(total >> 20)
        await asyncio.sleep(_MEMORY_SECONDS)


def main(argv: list[str]) -> int:
    """Exit code: 0 where the aim is met, else 1."""
    return run_tool(_parser(), argv, _measure, _judge)


def _measure(args: argparse.Namespace, about: dict[str, Any]) -> Sessions:
    with ServerProcess(args.server) as server:
        found = asyncio.run(measure(server, args.sessions, args.seconds, args.sentences))
    print(msgspec.json.format(msgspec.json.encode(found), indent=1).decode())
    told = {"sessions": args.sessions, "sentences": args.sentences, "seconds": args.seconds, "aim": args.aim}
    return Sessions(server=["stentor", "serve", *args.server], **told, **found, **about)


def _judge(console: Console, record: Sessions) -> int:
    return 0 if record.lag_p95 <= record.aim and not record.unfinished and not record.failed else 1


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("callers", __doc__)
    parser.add_argument("--sessions", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--sentences", type=int, default=3, help="of one turn")
    parser.add_argument("--aim", type=float, default=2.0, metavar="SECONDS", help="of the lag's 95th percentile")
    parser.add_argument("server", nargs="*", default=["--demo"], help="what `stentor serve` is given")
    return parser
