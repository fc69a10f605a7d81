"""``make voice``: texts spoken alone, and many at once: when sound begins, and how fast it is made."""

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx
import msgspec

from ..record import now_iso
from ..server_process import ServerProcess
from ..serving.machine import describe_machine
from .realtime import percentile

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


class Speaking(msgspec.Struct, frozen=True):
    command: list[str]
    taken: str
    machine: dict[str, Any]
    server: list[str]
    alone: list[Alone]
    crowd: Crowd


class Heard(NamedTuple):
    first: float
    last: float
    audio: float
    starving: float


async def hear(client: httpx.AsyncClient, text: str) -> Heard:
    """Has one text spoken. Seconds since it was asked for."""
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
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=600, limits=limits) as client:
        alone = []
        for name, text in TEXTS.items():
            await hear(client, text)
            heard = [await hear(client, text) for _ in range(times)]
            alone.append(
                Alone(
                    text=name,
                    chars=len(text),
                    first_audio=round(percentile([each.first for each in heard], 0.5), 3),
                    first_audio_slowest=round(max(each.first for each in heard), 3),
                    audio=round(percentile([each.audio for each in heard], 0.5), 2),
                    real_time_factor=round(percentile([each.last / each.audio for each in heard], 0.5), 4),
                )
            )
        together = await asyncio.gather(*(hear(client, f"This is voice {n}. " + TEXTS["a page"]) for n in range(texts)))
    firsts = [each.first for each in together]
    crowd = Crowd(
        texts=texts,
        first_audio_median=round(percentile(firsts, 0.5), 3),
        first_audio_slowest=round(max(firsts), 3),
        last_byte=round(max(each.last for each in together), 2),
        audio=round(sum(each.audio for each in together), 1),
        latest_starving=round(max(each.starving for each in together), 3),
    )
    return alone, crowd


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="stentor.loadtest.voice.speaking", description=__doc__)
    parser.add_argument("--times", type=int, default=10, help="that each text is spoken alone")
    parser.add_argument("--texts", type=int, default=16, help="that are spoken at once")
    parser.add_argument("--output", type=Path, help="where figures go, as JSON")
    parser.add_argument("server", nargs="*", default=["--demo"], help="what `stentor serve` is given")
    args = parser.parse_args(argv)
    with ServerProcess(args.server) as server:
        alone, crowd = asyncio.run(measure(server.port, args.times, args.texts))
        command = ["python", "-P", "-m", "stentor.loadtest.voice.speaking", *(sys.argv[1:] if argv is None else argv)]
        record = Speaking(command, now_iso(), describe_machine(), server.command, alone, crowd)
    for one in alone:
        print(
            f"{one.text} ({one.chars} characters, {one.audio:.1f} s): first audio after "
            f"{one.first_audio * 1000:.0f} ms, {one.real_time_factor:.3f} s a second"
        )
    print(
        f"{crowd.texts} at once: first audio after {crowd.first_audio_median * 1000:.0f} ms, the last after "
        f"{crowd.first_audio_slowest * 1000:.0f} ms; {crowd.audio:.0f} s of audio in {crowd.last_byte:.1f} s"
    )
    if args.output is not None:
        args.output.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
