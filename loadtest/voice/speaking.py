"""``stentor bench speech``: texts spoken alone, and many at once: when sound begins, and how fast it is made."""

import argparse
import asyncio
import time
from typing import Any, Final, Literal, NamedTuple

import httpx
import msgspec
from rich.console import Console

from ..record import Record, quantile
from ..server_process import HOST, ServerProcess
from ..tool import make_parser, run_tool

TEXTS: Final = {
    "a clause": "Sure, I can help you with that.",
    "a sentence": "The capital of France is Paris.",
    "a page": "The boat left the harbour at nine, and the sea was calm. Nobody spoke. We saw an island in the north. "
    * 10,
}
_BYTES_A_SECOND: Final = 48_000
"""Of ``pcm``: 24 kHz, 16 bits."""


class Alone(msgspec.Struct, frozen=True):
    """One text after another. Seconds, medians; ``real_time_factor`` is the time to the last byte over the audio's."""

    text: str
    chars: int
    first_audio: float
    first_audio_slowest: float
    audio: float
    real_time_factor: float


class Crowd(msgspec.Struct, frozen=True):
    """Equal texts that are asked for at the same moment. Seconds."""

    texts: int
    first_audio_median: float
    first_audio_slowest: float
    last_byte: float
    audio: float
    """In all."""
    latest_starving: float
    """How far playing that begins with the first sound would fall behind what has come, at worst."""


class Speaking(Record, frozen=True, kw_only=True):
    kind: Literal["speech"] = "speech"
    server: list[str]
    alone: list[Alone]
    crowd: Crowd


class Heard(NamedTuple):
    """One text, in seconds since it was asked for."""

    first: float
    last: float
    audio: float
    starving: float


async def hear(client: httpx.AsyncClient, text: str) -> Heard:
    """Has one text spoken."""
    began = time.monotonic()
    first, played, starving = 0.0, 0.0, 0.0
    async with client.stream("POST", "/v1/audio/speech", json={"input": text, "response_format": "pcm"}) as response:
        response.raise_for_status()
        async for piece in response.aiter_bytes():
            now = time.monotonic() - began
            first = first or now
            starving = max(starving, now - first - played)
            played += len(piece) / _BYTES_A_SECOND
    return Heard(first, time.monotonic() - began, played, starving)


async def measure(port: int, times: int, texts: int) -> tuple[list[Alone], Crowd]:
    limits = httpx.Limits(max_connections=texts)
    async with httpx.AsyncClient(base_url=f"http://{HOST}:{port}", timeout=600, limits=limits) as client:
        alone = []
        for name, text in TEXTS.items():
            await hear(client, text)
            heard = [await hear(client, text) for _ in range(times)]
            first, _, audio, _ = (quantile(column, 0.5) for column in zip(*heard, strict=True))
            factor = quantile([each.last / each.audio for each in heard], 0.5)
            alone.append(Alone(name, len(text), first, max(each.first for each in heard), audio, factor))
        together = await asyncio.gather(*(hear(client, f"This is voice {n}. " + TEXTS["a page"]) for n in range(texts)))
    firsts, lasts, audios, starving = zip(*together, strict=True)
    return alone, Crowd(texts, quantile(firsts, 0.5), max(firsts), max(lasts), sum(audios), max(starving))


def main(argv: list[str]) -> int:
    return run_tool(_parser(), argv, _measure, _show)


def _measure(args: argparse.Namespace, about: dict[str, Any]) -> Speaking:
    with ServerProcess(args.server) as server:
        alone, crowd = asyncio.run(measure(server.port, args.times, args.texts))
        return Speaking(server=server.command, alone=alone, crowd=crowd, **about)


def _show(console: Console, record: Speaking) -> None:
    for one in record.alone:
        print(
            f"{one.text} ({one.chars} characters, {one.audio:.1f} s): first audio after "
            f"{one.first_audio * 1000:.0f} ms, {one.real_time_factor:.3f} s a second"
        )
    crowd = record.crowd
    print(
        f"{crowd.texts} at once: first audio after {crowd.first_audio_median * 1000:.0f} ms, the last after "
        f"{crowd.first_audio_slowest * 1000:.0f} ms; {crowd.audio:.0f} s of audio in {crowd.last_byte:.1f} s"
    )


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("speech", __doc__)
    parser.add_argument("--times", type=int, default=10, help="that each text is spoken alone")
    parser.add_argument("--texts", type=int, default=16, help="that are spoken at once")
    parser.add_argument("server", nargs="*", default=["--demo"], help="what `stentor serve` is given")
    return parser
