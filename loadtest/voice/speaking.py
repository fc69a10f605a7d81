"""``stentor bench speech``: texts spoken alone, and many at once: when sound begins, and how fast it is made."""

import argparse
import asyncio
import time
from typing import Any, Final, NamedTuple

import httpx
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


class Speaking(Record, frozen=True, kw_only=True, tag="speech"):
    server: list[str]
    alone: list[dict[str, Any]]
    crowd: dict[str, float]


class PlayedSpeech(NamedTuple):
    """When the first and the last byte of a text came, and how much audio, in seconds."""

    first: float
    last: float
    audio: float
    starving: float
    """How far playing that begins with the first sound would fall behind what has come, at worst."""


async def play(client: httpx.AsyncClient, text: str) -> PlayedSpeech:
    began = time.monotonic()
    first, played, starving = 0.0, 0.0, 0.0
    async with client.stream("POST", "/v1/audio/speech", json={"input": text, "response_format": "pcm"}) as response:
        response.raise_for_status()
        async for piece in response.aiter_bytes():
            now = time.monotonic() - began
            first = first or now
            starving = max(starving, now - first - played)
            played += len(piece) / _BYTES_A_SECOND
    return PlayedSpeech(first, time.monotonic() - began, played, starving)


async def measure(port: int, times: int, texts: int) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Figures of each text spoken alone, medians, and of texts that are asked for at the same moment; in seconds."""
    limits = httpx.Limits(max_connections=texts)
    async with httpx.AsyncClient(base_url=f"http://{HOST}:{port}", timeout=600, limits=limits) as client:
        alone = []
        for name, text in TEXTS.items():
            await play(client, text)
            played = [await play(client, text) for _ in range(times)]
            alone.append(
                {
                    "text": name,
                    "chars": len(text),
                    "first_audio": quantile([each.first for each in played], 0.5),
                    "first_audio_slowest": max(each.first for each in played),
                    "audio": quantile([each.audio for each in played], 0.5),
                    "real_time_factor": quantile([each.last / each.audio for each in played], 0.5),
                }
            )
        together = await asyncio.gather(*(play(client, f"This is voice {n}. " + TEXTS["a page"]) for n in range(texts)))
    firsts, lasts, audios, starving = zip(*together, strict=True)
    return alone, {
        "texts": texts,
        "first_audio_median": quantile(firsts, 0.5),
        "first_audio_slowest": max(firsts),
        "last_byte": max(lasts),
        "audio": sum(audios),
        "latest_starving": max(starving),
    }


def main(argv: list[str]) -> int:
    parser = make_parser("speech", __doc__)
    parser.add_argument("--times", type=int, default=10, help="that each text is spoken alone")
    parser.add_argument("--texts", type=int, default=16, help="that are spoken at once")
    parser.add_argument("server", nargs="*", default=["--demo"], help="what `stentor serve` is given")
    return run_tool(parser, argv, _measure, _show)


def _measure(args: argparse.Namespace, about: dict[str, Any]) -> Speaking:
    with ServerProcess(args.server) as server:
        alone, crowd = asyncio.run(measure(server.port, args.times, args.texts))
        return Speaking(server=server.command, alone=alone, crowd=crowd, **about)


def _show(console: Console, record: Speaking) -> None:
    for one in record.alone:
        print(
            "{text} ({chars} characters, {audio:.1f} s): first audio after {first_audio:.3f} s, "
            "{real_time_factor:.3f} s a second".format(**one)
        )
    print(
        "{texts} at once: first audio after {first_audio_median:.3f} s, the last after {first_audio_slowest:.3f} s; "
        "{audio:.0f} s of audio in {last_byte:.1f} s".format(**record.crowd)
    )
